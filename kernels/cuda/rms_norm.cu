// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, row by row; without a weight out = x. rms_norm_add: out += it, in f32: a norm behind a branch,
// which adds it to the residual stream. Rows may stand in wider ones, on either side.
struct RmsNormArgs {
    const float *x;
    const float *weight;
    void *out;
    const u32 *rows;
    u32 cols, x_stride, out_stride;
    float eps;
};

template <typename T, bool ADD> DEVICE void rms_norm(const RmsNormArgs &a) {
    __shared__ float shared[32];
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const float *x = a.x + (size_t)r * a.x_stride;
        T *out = (T *)a.out + (size_t)r * a.out_stride;
        if (!a.weight) {
            for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = Of<T>::round(ADD ? widen(out[i]) + x[i] : x[i]);
            continue;
        }
        float sum = 0.0f;
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) sum += x[i] * x[i];
        const float mean = block_sum(sum, shared) / (float)a.cols;
        const float inverse = 1.0f / sqrtf(mean + a.eps);
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
            const float normal = x[i] * inverse * a.weight[i];
            out[i] = Of<T>::round(ADD ? widen(out[i]) + normal : normal);
        }
    }
}
KERNEL(256, 40) rms_norm_f32(RmsNormArgs a) { rms_norm<float, false>(a); }
KERNEL(256, 40) rms_norm_bf16(RmsNormArgs a) { rms_norm<bf16, false>(a); }
KERNEL(256, 40) rms_norm_add(RmsNormArgs a) { rms_norm<float, true>(a); }
