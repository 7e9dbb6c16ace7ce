// sum_experts: what its experts have made of a row, each weighed, added to its residual stream, or put there in its place; from the expert of the lowest number to that of the highest, so
// that a sum does not depend on who else is in the pass. Then what the shared expert has made of it, weighed by the sigmoid of its gate. And the norm that the next branch
// begins with, where nothing stands in between.
struct SumExpertsArgs {
    RmsNormArgs norm; // of `out`; its own `out` may be null: there is none
    const float *products; // [..][cols], by places
    const u32 *places; // [rows][active]
    const float *weights; // [rows][active]
    const float *shared; // [rows][cols], or null
    const float *gates; // of row r: gates[r * gate_stride]
    float *out; // [rows][cols]
    const u32 *rows;
    u32 cols, active, gate_stride, add;
};

DEVICE void add_weighed(float4 &sum, float weight, const float4 &x) {
    sum.x = __fmaf_rn(weight, x.x, sum.x), sum.y = __fmaf_rn(weight, x.y, sum.y), sum.z = __fmaf_rn(weight, x.z, sum.z), sum.w = __fmaf_rn(weight, x.w, sum.w);
}

template <typename T> DEVICE void sum_experts(const SumExpertsArgs &a) {
    __shared__ float shared[32];
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const u32 *places = a.places + (size_t)r * a.active;
        const float *weights = a.weights + (size_t)r * a.active;
        float *out = a.out + (size_t)r * a.cols;
        const float gate = a.shared ? 1.0f / (1.0f + exp_or_none(-a.gates[(size_t)r * a.gate_stride])) : 0.0f;
        if (in_fours(a.out, a.cols) && in_fours(a.products, 0) && in_fours(a.shared, 0)) {
            for (u32 i = threadIdx.x * 4; i < a.cols; i += blockDim.x * 4) {
                float4 sum = {};
                if (a.add) sum = load_four(out + i);
#pragma unroll 4
                for (u32 k = 0; k < a.active; k++) add_weighed(sum, weights[k], load_four(a.products + (size_t)places[k] * a.cols + i));
                if (a.shared) add_weighed(sum, gate, load_four(a.shared + (size_t)r * a.cols + i));
                store_four(out + i, sum);
            }
        } else {
            for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
                float sum = a.add ? out[i] : 0.0f;
                for (u32 k = 0; k < a.active; k++) sum = __fmaf_rn(weights[k], a.products[(size_t)places[k] * a.cols + i], sum);
                if (a.shared) sum = __fmaf_rn(gate, a.shared[(size_t)r * a.cols + i], sum);
                out[i] = sum;
            }
        }
        if (!a.norm.out) continue;
        __syncthreads(); // all of the row is there
        norm_row<T, false>(a.norm, r, shared);
    }
}
KERNEL(256, 80) sum_experts_f32(SumExpertsArgs a) { sum_experts<float>(a); }
KERNEL(256, 80) sum_experts_bf16(SumExpertsArgs a) { sum_experts<bf16>(a); }
