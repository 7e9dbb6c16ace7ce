// qkv: what stands between the QKV product and attention, one warp for each head of each row: bias, norm of query and key heads,
// rotation to the row's position, if heads are rotated; queries go back to where they were, keys and values into the slot of the row's position.
//
// Keys and values lie [block][kv_head][16 positions][head_dim], each layer by itself. head_dim is even and at most 256.
struct QkvArgs {
    float *qkv; // columns: queries | keys | values
    const float *bias;   // as long as a row, or null
    const float *q_norm; // head_dim, or null
    const float *k_norm;
    const float *cos_sin; // [position][cosines | sines], or null: heads are not rotated
    const u32 *positions, *chunk_of;
    const u32 *tables; // [chunk][table_stride]
    void *keys, *values;
    const u32 *rows;
    u32 heads, kv_heads, head_dim, table_stride;
    float eps;
};

static constexpr u32 PAIRS = 4; // of a lane: half a head of 256 over 32 lanes

template <typename T> DEVICE void qkv(const QkvArgs &a) {
    const u32 rows = *a.rows, all = a.heads + 2 * a.kv_heads, half = a.head_dim / 2;
    const u32 warps = gridDim.x * (blockDim.x / WARP);
    for (u32 item = blockIdx.x * (blockDim.x / WARP) + warp(); item < rows * all; item += warps) {
        const u32 r = item / all, head = item % all;
        const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
        float *from = a.qkv + ((size_t)r * all + head) * a.head_dim;
        const float *bias = a.bias ? a.bias + (size_t)head * a.head_dim : nullptr;
        const float *norm = value ? nullptr : query ? a.q_norm : a.k_norm;
        const u32 position = a.positions[r];

        // A lane has elements i of the first half and those opposite in the second.
        float x[PAIRS], y[PAIRS], sum = 0.0f;
        for (u32 p = 0; p < PAIRS; p++) {
            const u32 i = lane() + p * WARP;
            x[p] = i < half ? from[i] + (bias ? bias[i] : 0.0f) : 0.0f;
            y[p] = i < half ? from[half + i] + (bias ? bias[half + i] : 0.0f) : 0.0f;
            sum += x[p] * x[p] + y[p] * y[p];
        }
        const float inverse = norm ? 1.0f / sqrtf(warp_sum(sum) / (float)a.head_dim + a.eps) : 1.0f;
        T *to = nullptr;
        if (!query) {
            const u32 kv_head = (head - a.heads) % a.kv_heads;
            const size_t block = a.tables[(size_t)a.chunk_of[r] * a.table_stride + position / BLOCK];
            to = (T *)(value ? a.values : a.keys) + ((block * a.kv_heads + kv_head) * BLOCK + position % BLOCK) * a.head_dim;
        }
        for (u32 p = 0; p < PAIRS; p++) {
            const u32 i = lane() + p * WARP;
            if (i >= half) break;
            float first = x[p], second = y[p];
            if (norm) {
                first = first * inverse * norm[i];
                second = second * inverse * norm[half + i];
            }
            if (!value && a.cos_sin) {
                const float cos = a.cos_sin[(size_t)position * a.head_dim + i];
                const float sin = a.cos_sin[(size_t)position * a.head_dim + half + i];
                const float rotated = first * cos - second * sin;
                second = second * cos + first * sin;
                first = rotated;
            }
            if (query) {
                from[i] = first;
                from[half + i] = second;
            } else {
                to[i] = Of<T>::round(first);
                to[half + i] = Of<T>::round(second);
            }
        }
    }
}
KERNEL(256, 64) qkv_f32(QkvArgs a) { qkv<float>(a); }
KERNEL(256, 64) qkv_bf16(QkvArgs a) { qkv<bf16>(a); }
