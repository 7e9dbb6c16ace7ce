// compact_rows: in place, row i becomes row keep[i], which ascends. Rows before counts[1] are where they should be.
//
// A thread moves its column alone, from the first row to the last, several rows at a time so that their loads overlap: a row comes
// from where it is or from further back, so nothing is overwritten before it was read.
struct CompactRowsArgs {
    float *x;
    const u32 *keep;
    const u32 *counts; // rows that stay, the first that moves
    u32 cols;
};

static constexpr u32 TOGETHER = 8;

KERNEL(128, 48) compact_rows(CompactRowsArgs a) {
    const u32 rows = a.counts[0], column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= a.cols) return;
    for (u32 first = a.counts[1]; first < rows; first += TOGETHER) {
        float moved[TOGETHER];
        for (u32 i = 0; i < TOGETHER; i++) {
            moved[i] = first + i < rows ? a.x[(size_t)a.keep[first + i] * a.cols + column] : 0.0f;
        }
        for (u32 i = 0; i < TOGETHER; i++) {
            if (first + i < rows) a.x[(size_t)(first + i) * a.cols + column] = moved[i];
        }
    }
}
