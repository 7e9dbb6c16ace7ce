// soft_cap: x = cap tanh(x / cap), in place: no logit is larger than `cap`.
struct SoftCapArgs {
    float *x;
    const u32 *rows;
    u32 cols;
    float cap;
};

KERNEL(256, 40) soft_cap(SoftCapArgs a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.y; r < rows; r += gridDim.y) {
        float *x = a.x + (size_t)r * a.cols;
        for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.cols; i += gridDim.x * blockDim.x) x[i] = capped(x[i], a.cap);
    }
}
