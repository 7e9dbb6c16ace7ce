// attention, plain: causal softmax attention of each row over its own sequence's keys and values, up to its own position; one warp for
// a query (one head of one row) and a split of the positions. Any type, any head of up to 256: for tests, and where
// attention_mma.cu has no size. The arguments are the same.
//
// A split is a range of positions, the same for all rows, or as long as the row's position says (`split` 0); the last block of a tile merges what each split found. A row that
// lies in one split alone is finished at once.
struct Tile { u32 chunk, first_query; };
struct AttentionArgs {
    const float *q; // [rows][q_stride], heads side by side
    const void *keys, *values; // [block][kv_head][16][head_dim], or in FP8
    const u32 *tables;
    const u32 *positions;
    const Chunk *chunks;
    const Tile *tiles;
    void *out; // [rows][heads * head_dim]
    float *sums; // [row][head][split][head_dim]
    float2 *stats; // [row][head][split]: largest score, sum of exponentials
    const float *sinks; // [heads]: a score more in every softmax, with no value; none: null
    u32 *tickets; // [tile][kv_head]: 0
    u32 q_stride, table_stride, heads, kv_heads, head_dim, window, first, split, splits; // split 0: each row's own
    float scale, soft_cap; // no cap: 0
};

static constexpr u32 QUERIES = 16; // of a tile
static constexpr u32 PER_LANE = 8; // elements of a head of 256

// Keys, or values, of a position and a head.
template <typename T> struct Kept {
    const T *from;
    __device__ __forceinline__ Kept(const void *memory, size_t at, u32 slot, u32 dim) : from((const T *)memory + (at * BLOCK + slot) * dim) {}
    __device__ __forceinline__ float operator[](u32 i) const { return widen(from[i]); }
    __device__ __forceinline__ float scale() const { return 1.0f; }
};
template <> struct Kept<unsigned char> {
    const unsigned char *from;
    const float *scaled;
    __device__ __forceinline__ Kept(const void *memory, size_t at, u32 slot, u32 dim) : from((const unsigned char *)memory + at * fp8_page(dim)) {
        scaled = (const float *)(from + BLOCK * dim) + slot, from += slot * dim;
    }
    __device__ __forceinline__ float operator[](u32 i) const { return widen_fp8(from[i]); }
    __device__ __forceinline__ float scale() const { return *scaled; }
};

// Keys and values are K: floats, bf16, or FP8's codes.
template <typename T, typename K = T> DEVICE void attention(const AttentionArgs &a) {
    __shared__ float queries[4][WARP * PER_LANE];
    const Tile tile = a.tiles[blockIdx.z];
    if (tile.chunk == NOTHING) return;
    const Chunk chunk = a.chunks[tile.chunk];
    const u32 group = a.heads / a.kv_heads, kv_head = blockIdx.y, dim = a.head_dim;
    const u32 *table = a.tables + (size_t)tile.chunk * a.table_stride;
    if (tile.first_query >= chunk.rows * group) return;
    const u32 last = end_of_tile<QUERIES>(a, chunk, tile.first_query, group, chunk.rows * group);
    for (u32 query = tile.first_query + warp(); query < last; query += 4) {
        const u32 r = chunk.first + query / group, head = kv_head * group + query % group;
        const u32 end = a.positions[r] + 1, begin = first_seen(end, a.window, a.first);
        const u32 split = split_of(a, end), from = blockIdx.x * split;
        if (from >= end || from + split <= begin) continue;
        const u32 to = from + split < end ? from + split : end;

        const float *q = a.q + (size_t)r * a.q_stride + head * dim;
        // The shuffles of the query before came after its last read of these.
        for (u32 i = lane(); i < dim; i += WARP) queries[warp()][i] = q[i];
        __syncwarp();
        float largest = -infinity(), total = 0.0f, sums[PER_LANE] = {};
        // Tiles of 32 positions, one for a lane, counted from position 0.
        for (u32 start = (from > begin ? from : begin) / WARP * WARP; start < to; start += WARP) {
            const u32 position = start + lane();
            const bool seen = position >= begin && position >= from && position < to;
            const size_t block = seen ? table[position / BLOCK] : 0;
            const Kept<K> key(a.keys, block * a.kv_heads + kv_head, position % BLOCK, dim);
            float score = 0.0f;
            if (seen) {
#pragma unroll 2
                for (u32 i = 0; i < dim; i++) score += queries[warp()][i] * key[i];
                score *= key.scale();
            }
            score = seen ? (a.soft_cap != 0.0f ? capped(score * a.scale, a.soft_cap) : score * a.scale) : -infinity();
            const float before = largest;
            largest = fmaxf(largest, warp_max(score));
            if (largest == -infinity()) continue; // none of these is seen
            const float power = seen ? exp_of(score - largest) : 0.0f;
            const float factor = before == -infinity() ? 0.0f : before == largest ? 1.0f : exp_of(before - largest);
            total = total * factor + warp_sum(power);
            for (u32 p = 0; p < PER_LANE; p++) sums[p] *= factor;
            for (u32 l = 0; l < WARP; l++) {
                const float of_it = __shfl_sync(~0u, power, l);
                const u32 at = start + l;
                if (at < begin || at < from || at >= to) continue;
                const Kept<K> value(a.values, (size_t)table[at / BLOCK] * a.kv_heads + kv_head, at % BLOCK, dim);
                const float weight = of_it * value.scale();
                for (u32 p = 0; p < PER_LANE; p++) {
                    const u32 i = lane() + p * WARP;
                    if (i < dim) sums[p] += weight * value[i];
                }
            }
        }
        const bool alone = begin / split == (end - 1) / split;
        const size_t place = ((size_t)r * a.heads + head) * a.splits + blockIdx.x;
        if (alone && a.sinks) total += exp_of(a.sinks[head] - largest);
        for (u32 p = 0; p < PER_LANE; p++) {
            const u32 i = lane() + p * WARP;
            if (i >= dim) break;
            if (alone) ((T *)a.out)[((size_t)r * a.heads + head) * dim + i] = Of<T>::round(sums[p] / total);
            else a.sums[place * dim + i] = sums[p];
        }
        if (!alone && lane() == 0) {
            float2 found;
            found.x = largest;
            found.y = total;
            a.stats[place] = found;
        }
    }
    merge_tile<T, QUERIES>(a);
}
KERNEL(128, 96, 1) attention_f32(AttentionArgs a) { attention<float>(a); }
KERNEL(128, 96, 1) attention_bf16(AttentionArgs a) { attention<bf16>(a); }
KERNEL(128, 96, 1) attention_f32_fp8(AttentionArgs a) { attention<float, unsigned char>(a); }
KERNEL(128, 96, 1) attention_bf16_fp8(AttentionArgs a) { attention<bf16, unsigned char>(a); }
