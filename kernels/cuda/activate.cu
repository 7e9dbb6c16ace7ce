// activate: the activation of an MLP: out = f(gate) * up, where the columns of `x` are gate | up, or out = f(x) where there is no gate. The
// functions are those of kernels/src/ops/activate.rs, by their place there.
struct ActivateArgs {
    const float *x;
    void *out;
    const u32 *rows;
    u32 cols, activation, gated;
};

// 1 - Phi(x) for x of 0 or more.
DEVICE float upper_tail(float x) {
    const float t = 1.0f / __fmaf_rn(x, 0.21213203f, 1.0f);
    float q = -0.12570817f;
    q = __fmaf_rn(q, t, 0.4654234f);
    q = __fmaf_rn(q, t, -0.46660153f);
    q = __fmaf_rn(q, t, 0.48965293f);
    q = __fmaf_rn(q, t, -0.04943764f);
    q = __fmaf_rn(q, t, 0.19286616f);
    q = __fmaf_rn(q, t, 0.1549203f);
    q = __fmaf_rn(q, t, 0.16961836f);
    q = __fmaf_rn(q, t, 0.16926616f);
    return exp_of(-0.5f * x * x) * 0.5f * (t * q);
}

DEVICE float activation(u32 which, float x) {
    switch (which) {
    case 0: return x / (1.0f + exp_of(-x)); // SiLU
    case 1: return x / (1.0f + exp_of(-1.5957691f * x * __fmaf_rn(x * x, 0.044715f, 1.0f))); // GELU by a hyperbolic tangent
    case 2: return fmaxf(x, 0.0f) - upper_tail(fabsf(x)) * fabsf(x); // GELU
    case 3: return x < 0.0f ? 0.0f : x * x; // squared ReLU
    default: x = fminf(x, 7.0f); return x / (1.0f + exp_of(-1.702f * x)); // clamped SwiGLU (gpt-oss)
    }
}

// What the gate's value is multiplied by.
DEVICE float gated_by(u32 which, float up) { return which == 4 ? fmaxf(fminf(up, 7.0f), -7.0f) + 1.0f : up; }

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
