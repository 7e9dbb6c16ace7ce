// qkv: what stands between the QKV product and attention, one warp for each head of each row: bias, norm of query and key heads,
// rotation to the row's position, if heads are rotated; queries go back to where they were, keys and values into the slot of the row's position.
//
// Keys and values lie [block][kv_head][16 positions][head_dim], or in FP8 (tails.cuh), each layer by itself. head_dim is even and at most 256. A product of few rows does it
// itself (matmul.cu).
template <typename T> DEVICE void qkv(const QkvArgs &a) {
    const u32 rows = *a.rows, all = a.heads + 2 * a.kv_heads;
    const u32 warps = gridDim.x * (blockDim.x / WARP);
    for (u32 item = blockIdx.x * (blockDim.x / WARP) + warp(); item < rows * all; item += warps) finish_head<T>(a, item / all, item % all);
}
KERNEL(256, 64) qkv_f32(QkvArgs a) { qkv<float>(a); }
KERNEL(256, 64) qkv_bf16(QkvArgs a) { qkv<bf16>(a); }
