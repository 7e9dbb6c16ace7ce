// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, row by row. With `partial`, x += partial first: the residual of a layer
// whose ranks have just added up their parts.
struct RmsNormArgs {
    float *x;
    const float *partial;
    const float *weight;
    void *out;
    const u32 *rows;
    u32 cols;
    float eps;
};

template <typename T> DEVICE void rms_norm(const RmsNormArgs &a) {
    __shared__ float shared[32];
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        float *x = a.x + (size_t)r * a.cols;
        const float *partial = a.partial ? a.partial + (size_t)r * a.cols : nullptr;
        T *out = (T *)a.out + (size_t)r * a.cols;
        float sum = 0.0f;
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
            float value = x[i];
            if (partial) x[i] = value = value + partial[i];
            sum += value * value;
        }
        const float mean = block_sum(sum, shared) / (float)a.cols;
        const float inverse = 1.0f / sqrtf(mean + a.eps);
        // Each thread reads what it wrote itself.
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = Of<T>::round(x[i] * inverse * a.weight[i]);
    }
}
KERNEL(256, 40) rms_norm_f32(RmsNormArgs a) { rms_norm<float>(a); }
KERNEL(256, 40) rms_norm_bf16(RmsNormArgs a) { rms_norm<bf16>(a); }
