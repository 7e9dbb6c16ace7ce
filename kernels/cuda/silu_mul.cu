// silu_mul: out = silu(gate) * up, where the columns of `gate_up` are gate | up and silu(x) = x / (1 + e^-x).
struct SiluMulArgs {
    const float *gate_up;
    void *out;
    const u32 *rows;
    u32 cols;
};

template <typename T> DEVICE void silu_mul(const SiluMulArgs &a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.y; r < rows; r += gridDim.y) {
        const float *gate = a.gate_up + (size_t)r * 2 * a.cols, *up = gate + a.cols;
        T *out = (T *)a.out + (size_t)r * a.cols;
        for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.cols; i += gridDim.x * blockDim.x) {
            const float x = gate[i];
            out[i] = Of<T>::round(x / (1.0f + exp_of(-x)) * up[i]);
        }
    }
}
KERNEL(256, 40) silu_mul_f32(SiluMulArgs a) { silu_mul<float>(a); }
KERNEL(256, 40) silu_mul_bf16(SiluMulArgs a) { silu_mul<bf16>(a); }
