// activate: the activation of an MLP: out = f(gate) * up, where the columns of `x` are gate | up, or out = f(x) where there is no gate. The
// functions are those of kernels/src/ops/activate.rs, by their place there. A gated product of few rows does it itself (matmul.cu).
struct ActivateArgs {
    const float *x;
    void *out;
    const u32 *rows;
    u32 cols, activation, gated;
};

template <typename T> DEVICE void activate(const ActivateArgs &a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.y; r < rows; r += gridDim.y) {
        const float *x = a.x + (size_t)r * (a.gated ? 2 * a.cols : a.cols);
        T *out = (T *)a.out + (size_t)r * a.cols;
        for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.cols; i += gridDim.x * blockDim.x) {
            const float value = activation(a.activation, x[i]);
            out[i] = Of<T>::round(a.gated ? value * gated_by(a.activation, x[a.cols + i]) : value);
        }
    }
}
KERNEL(256, 40) activate_f32(ActivateArgs a) { activate<float>(a); }
KERNEL(256, 40) activate_bf16(ActivateArgs a) { activate<bf16>(a); }
