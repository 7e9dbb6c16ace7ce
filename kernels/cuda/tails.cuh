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

// Four numbers that follow one another, as one word: so a thread has the loads of a row under way together. One number at a time, each would wait for the store before it.
static constexpr u32 QUADS = 4; // of a thread: 4096 columns of a block
DEVICE float4 load_four(const float *at) { return *(const float4 *)at; }
DEVICE float4 load_four(const bf16 *at) {
    const uint2 pairs = *(const uint2 *)at;
    float4 x;
    x.x = __uint_as_float(pairs.x << 16), x.y = __uint_as_float(pairs.x & 0xffff0000u);
    x.z = __uint_as_float(pairs.y << 16), x.w = __uint_as_float(pairs.y & 0xffff0000u);
    return x;
}
DEVICE void store_four(float *at, const float4 &x) { *(float4 *)at = x; }
DEVICE void store_four(bf16 *at, const float4 &x) {
    uint2 pairs;
    pairs.x = pack(x.x, x.y), pairs.y = pack(x.z, x.w);
    *(uint2 *)at = pairs;
}
// Whether rows of so many columns, from there on, are whole words of four.
DEVICE bool in_fours(const void *at, u32 cols) { return ((u64)at % 16 | cols % 4) == 0; }

// `to` becomes what `change` makes of the numbers of `from`, by a block, where both are whole words of four.
template <typename From, typename Change> DEVICE void change_fours(float *to, const From *from, u32 cols, const Change &change) {
    for (u32 start = threadIdx.x * 4; start < cols; start += QUADS * 4 * blockDim.x) {
        float4 held[QUADS];
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const u32 i = start + j * 4 * blockDim.x;
            held[j] = load_four(from + (i < cols ? i : start));
        }
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const u32 i = start + j * 4 * blockDim.x;
            if (i < cols) store_four(to + i, change(held[j]));
        }
    }
}

DEVICE float square_of(const float4 &x) { return x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w); }
template <typename T, bool ADD> DEVICE void store_normal(T *out, const float4 &x, float inverse, const float4 &weight) {
    float4 y;
    y.x = x.x * inverse * weight.x, y.y = x.y * inverse * weight.y, y.z = x.z * inverse * weight.z, y.w = x.w * inverse * weight.w;
    if (ADD) {
        const float4 before = load_four(out);
        y.x += before.x, y.y += before.y, y.z += before.z, y.w += before.w;
    }
    store_four(out, y);
}

// One row by a block; `shared` has a place for each warp.
template <typename T, bool ADD> DEVICE void norm_row(const RmsNormArgs &a, u32 r, float *shared) {
    const float *x = a.x + (size_t)r * a.x_stride;
    T *out = (T *)a.out + (size_t)r * a.out_stride;
    const bool fours = in_fours(a.x, a.cols | a.x_stride | a.out_stride) && in_fours(a.out, 0) && in_fours(a.weight, 0);
    if (fours && a.weight && a.cols <= QUADS * 4 * blockDim.x) {
        float4 held[QUADS], weight[QUADS];
        float sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const u32 i = (threadIdx.x + j * blockDim.x) * 4;
            held[j] = load_four(x + (i < a.cols ? i : 0)), weight[j] = load_four(a.weight + (i < a.cols ? i : 0));
        }
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            if ((threadIdx.x + j * blockDim.x) * 4 < a.cols) sum += square_of(held[j]);
        }
        const float inverse = 1.0f / sqrtf(block_sum(sum, shared) / (float)a.cols + a.eps);
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            const u32 i = (threadIdx.x + j * blockDim.x) * 4;
            if (i < a.cols) store_normal<T, ADD>(out + i, held[j], inverse, weight[j]);
        }
        return;
    }
    if (fours && a.weight) { // wider than a block holds: it is read twice
        float sum = 0.0f;
#pragma unroll 4
        for (u32 i = threadIdx.x * 4; i < a.cols; i += blockDim.x * 4) sum += square_of(load_four(x + i));
        const float inverse = 1.0f / sqrtf(block_sum(sum, shared) / (float)a.cols + a.eps);
#pragma unroll 1
        for (u32 i = threadIdx.x * 4; i < a.cols; i += blockDim.x * 4) store_normal<T, ADD>(out + i, load_four(x + i), inverse, load_four(a.weight + i));
        return;
    }
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

// ---- keys and values
// They lie block after block, head after head: BLOCK positions of a head, in f32 or bf16; or in FP8 (E4M3), codes, then for each position its scale, f32, by which the
// largest of its numbers is 448. kernels/src/cuda/kv_element.rs has the same.
static constexpr float FP8_LEAST = 1.5e-36f; // a head of smaller numbers is 0, and one with a number that is NaN or infinite is NaN
DEVICE u64 fp8_page(u32 head_dim) { return BLOCK * (head_dim + 4); } // bytes
// A number of at most 448 as E4M3, to nearest even: those below 2^-6 lie 2^-9 apart.
DEVICE u32 fp8_of(float x) {
    const u32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    const u32 code = size >= 0x3c800000u ? ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - 960 : __float_as_uint(fabsf(x) * 512.0f + 8388608.0f) & 15;
    return (bits >> 24 & 128) | (code < 127 ? code : 127);
}
// The number that a code is: the bits of f32 have it 2^-120 times.
DEVICE float widen_fp8(u32 code) { return __uint_as_float((code & 128) << 24 | (code & 127) << 20) * __uint_as_float(0x7b800000u); }

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
    u32 fp8; // keys and values are; else they are as the kernel says
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
    float largest = 0.0f;
    for (u32 p = 0; p < PAIRS; p++) {
        const u32 i = lane() + p * WARP;
        if (i >= half) break;
        if (norm) {
            x[p] = x[p] * inverse * norm[i];
            y[p] = y[p] * inverse * norm[half + i];
        }
        if (!value && a.cos_sin) {
            const float cos = a.cos_sin[(size_t)position * a.head_dim + i];
            const float sin = a.cos_sin[(size_t)position * a.head_dim + half + i];
            const float rotated = x[p] * cos - y[p] * sin;
            y[p] = y[p] * cos + x[p] * sin;
            x[p] = rotated;
        }
        if (query) {
            from[i] = x[p];
            from[half + i] = y[p];
        } else {
            largest = fmaxf(largest, fmaxf(fabsf(x[p]), fabsf(y[p])));
            if (x[p] != x[p] || y[p] != y[p]) largest = infinity(); // it must show
        }
    }
    if (query) return;
    const u32 slot = position % BLOCK;
    const size_t at = (size_t)a.tables[(size_t)a.chunk_of[r] * a.table_stride + position / BLOCK] * a.kv_heads + (head - a.heads) % a.kv_heads;
    void *const memory = value ? a.values : a.keys;
    if (!a.fp8) {
        T *to = (T *)memory + (at * BLOCK + slot) * a.head_dim;
        for (u32 p = 0; p < PAIRS; p++) {
            const u32 i = lane() + p * WARP;
            if (i >= half) break;
            to[i] = Of<T>::round(x[p]);
            to[half + i] = Of<T>::round(y[p]);
        }
        return;
    }
    unsigned char *page = (unsigned char *)memory + at * fp8_page(a.head_dim), *to = page + slot * a.head_dim;
    largest = warp_max(largest);
    const bool some = largest > FP8_LEAST; // 448 over it is a number
    const float by = some ? 448.0f / largest : 0.0f, scale = some ? largest / 448.0f : 0.0f;
    if (lane() == 0) ((float *)(page + BLOCK * a.head_dim))[slot] = largest < infinity() ? scale : __uint_as_float(0x7fc00000u);
    for (u32 p = 0; p < PAIRS; p++) {
        const u32 i = lane() + p * WARP;
        if (i >= half) break;
        to[i] = fp8_of(x[p] * by);
        to[half + i] = fp8_of(y[p] * by);
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

// The queries of a tile of so many, by the last of the blocks that have its splits: what these found, brought to one largest score and added, from the first split to the last. Rows that lie
// in one split alone are finished already. For all blocks of a tile that has some, whatever they had to do. What is read anew here need not be kept while they attend.
static constexpr u32 MOST_SPLITS = 16; // ATTENTION_SPLITS of kernels/src/cuda/attention_launches.rs
template <typename T, u32 QUERIES, typename Args> DEVICE void merge_tile(const Args &a) {
    __shared__ float factors[QUERIES][MOST_SPLITS], totals[QUERIES];
    __shared__ u32 counts[QUERIES], firsts[QUERIES];
    if (a.splits == 1 || !is_last(a.tickets + blockIdx.z * gridDim.y + blockIdx.y, gridDim.x)) return;
    const auto tile = a.tiles[blockIdx.z];
    const Chunk chunk = a.chunks[tile.chunk];
    const u32 group = a.heads / a.kv_heads, queries = end_of_tile<QUERIES>(a, chunk, tile.first_query, group, chunk.rows * group) - tile.first_query;
    const auto item_of = [&](u32 query) { // its head of its row
        query += tile.first_query;
        return (size_t)(chunk.first + query / group) * a.heads + blockIdx.y * group + query % group;
    };
    // A thread for a query: the factors of its splits.
    for (u32 query = threadIdx.x; query < queries; query += blockDim.x) {
        const size_t item = item_of(query);
        const u32 end = a.positions[item / a.heads] + 1, begin = first_seen(end, a.window, a.first), split = split_of(a, end);
        const u32 first = begin / split, count = (end - 1) / split + 1 - first;
        counts[query] = count, firsts[query] = first;
        if (count == 1) continue;
        const float2 *stats = a.stats + item * a.splits + first;
        float largest = -infinity(), total = 0.0f;
#pragma unroll 4
        for (u32 s = 0; s < count; s++) largest = fmaxf(largest, stats[s].x);
#pragma unroll 4
        for (u32 s = 0; s < count; s++) {
            const float factor = exp_of(stats[s].x - largest);
            factors[query][s] = factor;
            total += stats[s].y * factor;
        }
        if (a.sinks) total += exp_of(a.sinks[item % a.heads] - largest);
        totals[query] = total;
    }
    __syncthreads();
    // A thread for pairs of elements, some at a time: what they are added from is under way for all of these.
    constexpr u32 SOME = 4;
    const u32 pairs = a.head_dim / 2, all = queries * pairs;
    for (u32 base = threadIdx.x; base < all; base += SOME * blockDim.x) {
        const float2 *from[SOME];
        float2 sums[SOME];
        u32 of[SOME], most = 0;
#pragma unroll
        for (u32 j = 0; j < SOME; j++) {
            const u32 item = base + j * blockDim.x < all ? base + j * blockDim.x : base;
            of[j] = item / pairs;
            from[j] = (const float2 *)(a.sums + (item_of(of[j]) * a.splits + firsts[of[j]]) * a.head_dim) + item % pairs;
            sums[j].x = sums[j].y = 0.0f;
            most = counts[of[j]] > most ? counts[of[j]] : most;
        }
#pragma unroll 2
        for (u32 s = 0; s < most; s++) {
#pragma unroll
            for (u32 j = 0; j < SOME; j++) {
                if (s >= counts[of[j]] || counts[of[j]] == 1) continue;
                const float2 found = from[j][(size_t)s * pairs];
                sums[j].x += found.x * factors[of[j]][s];
                sums[j].y += found.y * factors[of[j]][s];
            }
        }
#pragma unroll
        for (u32 j = 0; j < SOME; j++) {
            const u32 item = base + j * blockDim.x;
            if (item >= all || counts[of[j]] == 1) continue;
            T *out = (T *)a.out + item_of(of[j]) * a.head_dim + item % pairs * 2;
            out[0] = Of<T>::round(sums[j].x / totals[of[j]]);
            out[1] = Of<T>::round(sums[j].y / totals[of[j]]);
        }
    }
}
