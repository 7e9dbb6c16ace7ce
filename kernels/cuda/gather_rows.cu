// gather_rows: row r of `out` becomes row indices[r * stride] of `x`. A row of NOTHING becomes zeros.
struct GatherRowsArgs {
    const float *x;
    const u32 *indices;
    float *out;
    const u32 *rows;
    u32 cols, stride;
};

KERNEL(256, 40) gather_rows(GatherRowsArgs a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const u32 index = a.indices[(size_t)r * a.stride];
        if (index != NOTHING && in_fours(a.out, a.cols) && in_fours(a.x, 0)) {
            change_fours(a.out + (size_t)r * a.cols, a.x + (size_t)index * a.cols, a.cols, [](const float4 &x) { return x; });
            continue;
        }
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
            a.out[(size_t)r * a.cols + i] = index == NOTHING ? 0.0f : a.x[(size_t)index * a.cols + i];
        }
    }
}
