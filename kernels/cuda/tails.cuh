// What follows a product or attention row by row. It stands behind the prelude, before each file: kernels of their own call it, and so do the last
// blocks of the kernels before, where one launch does both. The same numbers either way, bit for bit.

// Whether this block is the last of `count` that come here with that ticket: it then sees all that the others have written, and the ticket is as it was. For all threads
// of a block.
DEVICE bool is_last(u32 *ticket, u32 count) {
    __shared__ u32 turn;
    __threadfence(); // what this thread wrote is there before the ticket is taken
    __syncthreads();
    if (threadIdx.x == 0) turn = atomicAdd(ticket, 1u);
    __syncthreads();
    const bool last = turn == count - 1;
    if (last) {
        __threadfence(); // and what the others wrote is seen
        if (threadIdx.x == 0) *ticket = 0;
    }
    return last;
}

// ---- norms
struct RmsNormArgs {
    const float *x;
    const float *weight;
    void *out;
    const u32 *rows;
    u32 cols, x_stride, out_stride;
    float eps;
};

// One row by a block; `shared` has a place for each warp.
template <typename T, bool ADD> DEVICE void norm_row(const RmsNormArgs &a, u32 r, float *shared) {
    const float *x = a.x + (size_t)r * a.x_stride;
    T *out = (T *)a.out + (size_t)r * a.out_stride;
    if (!a.weight) {
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = Of<T>::round(ADD ? widen(out[i]) + x[i] : x[i]);
        return;
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

// ---- heads
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

// One head of a row by a warp; heads are those of queries, keys, values.
template <typename T> DEVICE void finish_head(const QkvArgs &a, u32 r, u32 head) {
    const u32 all = a.heads + 2 * a.kv_heads, half = a.head_dim / 2;
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

// ---- activations, by their place in kernels/src/ops/activate.rs
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

// ---- splits of attention
// Positions of a split of a row that sees what is before `end`: as the pass has them; or, where that is 0, as the row itself has them, whoever is beside it.
static constexpr u32 SHORTEST_SPLIT = 256; // that of kernels/src/cuda/attention_launches.rs
template <typename Args> DEVICE u32 split_of(const Args &a, u32 end) {
    u32 split = a.split ? a.split : SHORTEST_SPLIT;
    if (!a.split) while (split * a.splits < end) split *= 2;
    return split;
}
// The query behind the last of a tile of so many, of all `queries` of its chunk: all of a tile have splits of one length.
template <u32 QUERIES, typename Args> DEVICE u32 end_of_tile(const Args &a, const Chunk &chunk, u32 first_query, u32 group, u32 queries) {
    u32 end = first_query + QUERIES < queries ? first_query + QUERIES : queries;
    if (a.split) return end;
    const auto split = [&](u32 query) { return split_of(a, a.positions[chunk.first + query / group] + 1); };
    while (split(end - 1) != split(first_query)) end--;
    return end;
}

// What the splits found for a head of a row, brought to one largest score and added, from the first split to the last, by a warp. Rows that lie in one split
// alone are finished already.
template <typename T, typename Args> DEVICE void merge_splits(const Args &a, u32 r, u32 head) {
    const size_t item = (size_t)r * a.heads + head;
    const u32 end = a.positions[r] + 1, begin = first_seen(end, a.window, a.first);
    const u32 split = split_of(a, end), first = begin / split, last = (end - 1) / split;
    if (first == last) return;
    const float2 *stats = a.stats + item * a.splits;
    float largest = -infinity(), total = 0.0f;
    for (u32 s = first; s <= last; s++) largest = fmaxf(largest, stats[s].x);
    for (u32 s = first; s <= last; s++) total += stats[s].y * exp_of(stats[s].x - largest);
    if (a.sinks) total += exp_of(a.sinks[head] - largest);
    for (u32 i = lane(); i < a.head_dim; i += WARP) {
        float sum = 0.0f;
        for (u32 s = first; s <= last; s++) sum += a.sums[(item * a.splits + s) * a.head_dim + i] * exp_of(stats[s].x - largest);
        ((T *)a.out)[item * a.head_dim + i] = Of<T>::round(sum / total);
    }
}

// The queries of a tile of so many, by the last of the blocks that have its splits. For all blocks of a tile that has some, whatever they had to do. What is read anew here need
// not be kept while they attend.
template <typename T, u32 QUERIES, typename Args> DEVICE void merge_tile(const Args &a) {
    if (a.splits == 1 || !is_last(a.tickets + blockIdx.z * gridDim.y + blockIdx.y, gridDim.x)) return;
    const auto tile = a.tiles[blockIdx.z];
    const Chunk chunk = a.chunks[tile.chunk];
    const u32 group = a.heads / a.kv_heads, end = end_of_tile<QUERIES>(a, chunk, tile.first_query, group, chunk.rows * group);
    for (u32 query = tile.first_query + warp(); query < end; query += blockDim.x / WARP) {
        merge_splits<T>(a, chunk.first + query / group, blockIdx.y * group + query % group);
    }
}
