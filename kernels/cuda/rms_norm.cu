// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, row by row; without a weight out = x. rms_norm_add: out += it, in f32: a norm behind a branch,
// which adds it to the residual stream. Rows may stand in wider ones, on either side. Behind a product of few rows its last block does it (matmul.cu).
template <typename T, bool ADD> DEVICE void rms_norm(const RmsNormArgs &a) {
    __shared__ float shared[32];
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) norm_row<T, ADD>(a, r, shared);
}
KERNEL(256, 64) rms_norm_f32(RmsNormArgs a) { rms_norm<float, false>(a); }
KERNEL(256, 64) rms_norm_bf16(RmsNormArgs a) { rms_norm<bf16, false>(a); }
KERNEL(256, 64) rms_norm_add(RmsNormArgs a) { rms_norm<float, true>(a); }
