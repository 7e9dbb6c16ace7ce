// features: what a head on hidden states reads of its target, in pages that are indexed as the target's KV is. write_features puts that of each row
// where the row stands; read_features takes that of the token before each row, zeros for a row at the first position, which nobody sees, and for
// rows of mask tokens what stands for features that are not known.
// pass_on keeps the row behind each sample for the sample's chunk: what the next row of that chunk begins with.
struct FeaturesArgs {
    void *pages; // [block][16][cols]
    const u32 *tables; // [chunk][table_stride]
    const u32 *chunk_of; // per row
    const u32 *positions; // per row
    float *x; // [rows][cols]
    const u32 *rows;
    const u32 *masked; // per row: not 0 for a mask token; or null
    const float *unknown; // [cols]
    u32 table_stride, cols;
};

template <typename T, bool WRITE> DEVICE void features(const FeaturesArgs &a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const u32 position = a.positions[r];
        if (!WRITE && a.masked && a.masked[r]) {
            for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) a.x[(size_t)r * a.cols + i] = a.unknown[i];
            continue;
        }
        const bool there = WRITE || position > 0;
        const u32 at = WRITE ? position : there ? position - 1 : 0;
        const u32 *table = a.tables + (size_t)a.chunk_of[r] * a.table_stride;
        T *page = (T *)a.pages + ((size_t)(there ? table[at / BLOCK] : 0) * BLOCK + at % BLOCK) * a.cols;
        float *x = a.x + (size_t)r * a.cols;
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
            if (WRITE) page[i] = Of<T>::round(x[i]);
            else x[i] = there ? widen(page[i]) : 0.0f;
        }
    }
}
KERNEL(256, 40) write_features_f32(FeaturesArgs a) { features<float, true>(a); }
KERNEL(256, 40) write_features_bf16(FeaturesArgs a) { features<bf16, true>(a); }
KERNEL(256, 40) read_features_f32(FeaturesArgs a) { features<float, false>(a); }
KERNEL(256, 40) read_features_bf16(FeaturesArgs a) { features<bf16, false>(a); }

struct PassOnArgs {
    const float *x; // [samples][cols]
    const Sample *samples;
    const u32 *of_plan; // [chunk of the pass]: chunk of `out`; null: the same
    float *out; // [chunk][cols]
    const u32 *count;
    u32 cols;
};

KERNEL(256, 32) pass_on(PassOnArgs a) {
    const u32 count = *a.count;
    for (u32 s = blockIdx.x; s < count; s += gridDim.x) {
        const u32 chunk = a.samples[s].chunk, to = a.of_plan ? a.of_plan[chunk] : chunk;
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) a.out[(size_t)to * a.cols + i] = a.x[(size_t)s * a.cols + i];
    }
}
