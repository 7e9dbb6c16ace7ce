// gather_rows: row r of `out` becomes row indices[r * stride] of `x`. A row of NOTHING becomes zeros.
struct GatherRowsArgs {
    const float *x;
    const u32 *indices;
    float *out;
    const u32 *rows;
    u32 cols, stride;
};

KERNEL(256, 32) gather_rows(GatherRowsArgs a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const u32 index = a.indices[(size_t)r * a.stride];
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
            a.out[(size_t)r * a.cols + i] = index == NOTHING ? 0.0f : a.x[(size_t)index * a.cols + i];
        }
    }
}
