// attention in bf16 on tensor cores, for decode and verify: as attention.cu, with the same arguments.
//
// A block has a tile of up to QUERIES queries of one chunk and key head (the rows of the chunk times the heads that share the key
// head, so that keys are read once for all of them) and one split of the positions. Keys and values of 64 positions come
// by cp.async, page by page, STAGES of them under way. Four warps: QUERIES / 16 split the queries, the rest the positions of a
// stage; at the end those of different positions are added in the order of their warps. Scores and sums are f32, the
// exponentials go into the second product as bf16. Keys and values in FP8 come as codes, which are bf16 without a rounding, and become so
// in shared memory when their stage begins; scores and exponentials are scaled. The last block of a tile merges what its splits found.
struct Tile { u32 chunk, first_query; };
struct AttentionArgs {
    const float *q; // [rows][q_stride], heads side by side
    const void *keys, *values; // [block][kv_head][16][head_dim], or in FP8
    const u32 *tables;
    const u32 *positions;
    const Chunk *chunks;
    const Tile *tiles;
    bf16 *out; // [rows][heads * head_dim]
    float *sums; // [row][head][split][head_dim]
    float2 *stats; // [row][head][split]: largest score, sum of exponentials
    const float *sinks; // [heads]: a score more in every softmax, with no value; none: null
    u32 *tickets; // [tile][kv_head]: 0
    u32 q_stride, table_stride, heads, kv_heads, head_dim, window, first, split, splits; // split 0: each row's own
    float scale, soft_cap; // no cap: 0
};

static constexpr u32 THREADS = 128, POSITIONS = 64;
static constexpr float LOG2_E = 1.442695041f, LN_2 = 0.6931471806f;

// The keys and values of a stage, on their way and where products read them, in bf16.
template <u32 DIM> struct Sixteen {
    static constexpr u32 ROW = DIM + 8; // padded: the eight rows of a matrix lie in different banks
    static constexpr u32 TILE = POSITIONS * ROW; // keys; so many values follow
    static constexpr u32 WIDE = 0, STAGE = 4 * TILE; // bytes before the stages, and of one

    // Asks for the keys and values of 64 positions; zeros from `end` on, lest 0 times what was there be NaN.
    static __device__ __forceinline__ void fetch(const AttentionArgs &a, const u32 *table, char *to, u32 start, u32 end) {
        constexpr u32 ACROSS = DIM / 8, APART = THREADS / ACROSS, EACH = POSITIONS / APART;
        bf16 *stage = (bf16 *)to;
        const bf16 *keys = (const bf16 *)a.keys, *values = (const bf16 *)a.values;
        const u32 row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS * 8;
        // All of the table's words are under way before one is waited for.
        u32 blocks[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const u32 position = start + row + j * APART;
            blocks[j] = table[(position < end ? position : start) / BLOCK];
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const u32 position = start + row + j * APART, place = (row + j * APART) * ROW + column;
            const size_t at = (((size_t)blocks[j] * a.kv_heads + blockIdx.y) * BLOCK + position % BLOCK) * DIM + column;
            copy_async(stage + place, keys + at, position < end);
            copy_async(stage + TILE + place, values + at, position < end);
        }
    }
    static __device__ __forceinline__ const bf16 *tile(char *, char *stage) { return (const bf16 *)stage; }
    static __device__ __forceinline__ float2 key_scales(const char *, u32) { return {1.0f, 1.0f}; }
    static __device__ __forceinline__ void scale(float *, const float2 &) {}
    static __device__ __forceinline__ float2 value_scales(const char *, u32) { return {1.0f, 1.0f}; }
    static __device__ __forceinline__ u32 powers(float first, float second, const float2 &) { return pack(first, second); }
};

// The same in FP8: codes and scales of each stage, and a tile of bf16 for the stage that is worked on.
template <u32 DIM> struct Eight {
    static constexpr u32 ROW = DIM + 8, TILE = POSITIONS * ROW;
    static constexpr u32 CODES = POSITIONS * DIM, SCALES = 2 * CODES; // bytes of keys; where scales lie
    static constexpr u32 WIDE = 4 * TILE, STAGE = SCALES + 8 * POSITIONS;

    static __device__ __forceinline__ void fetch(const AttentionArgs &a, const u32 *table, char *stage, u32 start, u32 end) {
        constexpr u32 ACROSS = DIM / 16, APART = THREADS / ACROSS, EACH = POSITIONS / APART;
        const char *keys = (const char *)a.keys, *values = (const char *)a.values;
        const u32 row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS * 16;
        u32 blocks[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const u32 position = start + row + j * APART;
            blocks[j] = table[(position < end ? position : start) / BLOCK];
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const u32 position = start + row + j * APART, place = (row + j * APART) * DIM + column;
            const size_t at = ((size_t)blocks[j] * a.kv_heads + blockIdx.y) * fp8_page(DIM) + position % BLOCK * DIM + column;
            copy_async(stage + place, keys + at, position < end);
            copy_async(stage + CODES + place, values + at, position < end);
        }
        // Four scales of keys, or of values, for a thread; behind `end` they are any.
        if (threadIdx.x < POSITIONS / 2) {
            const bool value = threadIdx.x >= POSITIONS / 4;
            const u32 position = start + threadIdx.x % (POSITIONS / 4) * 4;
            const size_t at = ((size_t)table[(position < end ? position : start) / BLOCK] * a.kv_heads + blockIdx.y) * fp8_page(DIM) + BLOCK * DIM + position % BLOCK * 4;
            copy_async(stage + SCALES + threadIdx.x * 16, (value ? values : keys) + at, position < end);
        }
    }
    // Widens a stage that all threads see; all see what it becomes.
    static __device__ __forceinline__ const bf16 *tile(char *wide, char *stage) {
        bf16 *to = (bf16 *)wide;
        // A thread writes 16 bytes: those of neighbours lie side by side, in different banks.
#pragma unroll 4
        for (u32 i = threadIdx.x; i < SCALES / 8; i += THREADS) {
            const uint2 codes = *(const uint2 *)(stage + i * 8);
            uint4 wide;
            wide.x = pair<0>(codes.x), wide.y = pair<2>(codes.x), wide.z = pair<0>(codes.y), wide.w = pair<2>(codes.y);
            *(uint4 *)(to + i / (DIM / 8) * ROW + i % (DIM / 8) * 8) = wide;
        }
        __syncthreads();
        return to;
    }
    // Code FIRST and the next one.
    template <u32 FIRST> static __device__ __forceinline__ u32 pair(u32 codes) { return widen_codes(__byte_perm(codes, 0, FIRST ? 0x3020 : 0x1000)); }
    static __device__ __forceinline__ float2 key_scales(const char *stage, u32 place) { return *(const float2 *)(stage + SCALES + 4 * place); }
    static __device__ __forceinline__ void scale(float *scores, const float2 &by) { scores[0] *= by.x, scores[1] *= by.y, scores[2] *= by.x, scores[3] *= by.y; }
    static __device__ __forceinline__ float2 value_scales(const char *stage, u32 place) { return key_scales(stage, POSITIONS + place); }
    // What is not seen has no weight, whatever its scale.
    static __device__ __forceinline__ u32 powers(float first, float second, const float2 &by) {
        return pack(first == 0.0f ? 0.0f : first * by.x, second == 0.0f ? 0.0f : second * by.y);
    }
};

template <u32 DIM, u32 QUERIES, u32 STAGES = 3, typename Kept = Sixteen<DIM>> struct Attention {
    static constexpr u32 ROW = Kept::ROW, TILE = Kept::TILE;
    static constexpr u32 OF_QUERIES = QUERIES / 16, OF_POSITIONS = 4 / OF_QUERIES;
    static constexpr u32 SPAN = POSITIONS / OF_POSITIONS; // positions of a warp in a stage
    static constexpr u32 NOT_OF_IT = 0, ONE_OF_SOME = 1, ALONE = 2;

    static __device__ __forceinline__ void run(const AttentionArgs &a) {
        const Tile tile = a.tiles[blockIdx.z];
        if (tile.chunk == NOTHING) return;
        const Chunk chunk = a.chunks[tile.chunk];
        const u32 group = a.heads / a.kv_heads, all = chunk.rows * group;
        if (tile.first_query >= all) return;
        attend(a, tile, chunk, group, end_of_tile<QUERIES>(a, chunk, tile.first_query, group, all));
        merge_tile<bf16, QUERIES>(a);
    }

    // One split of the queries before `queries`.
    static __device__ __forceinline__ void attend(const AttentionArgs &a, const Tile &tile, const Chunk &chunk, u32 group, u32 queries) {
        DYNAMIC_SHARED(bytes);
        char *stages = bytes + Kept::WIDE;
        const u32 *table = a.tables + (size_t)tile.chunk * a.table_stride;

        // What any row of the tile sees of this split.
        const u32 last_query = queries - 1;
        const u32 first_end = a.positions[chunk.first + tile.first_query / group] + 1;
        const u32 last_end = a.positions[chunk.first + last_query / group] + 1;
        const u32 split = split_of(a, last_end), from = blockIdx.x * split, to = from + split < last_end ? from + split : last_end;
        const u32 seen_from = first_seen(first_end, a.window, a.first);
        const u32 start = (from > seen_from ? from : seen_from) / POSITIONS * POSITIONS;
        if (start >= to) return;

        const u32 count = (to - start + POSITIONS - 1) / POSITIONS;
        for (u32 s = 0; s < STAGES - 1; s++) {
            if (s < count) Kept::fetch(a, table, stages + s * Kept::STAGE, start + s * POSITIONS, to);
            copy_commit();
        }

        // The thread's two queries, eight apart, and its place in fragments.
        const u32 g = lane() / 4, t = lane() % 4, part = warp() / OF_QUERIES, first_row = warp() % OF_QUERIES * 16;
        u32 begins[2], ends[2], q[DIM / 16][4];
        for (u32 i = 0; i < 2; i++) {
            const u32 query = tile.first_query + first_row + g + 8 * i;
            const bool real = query < queries;
            const u32 r = chunk.first + (real ? query : last_query) / group, head = blockIdx.y * group + (real ? query : last_query) % group;
            ends[i] = real ? a.positions[r] + 1 : 0;
            begins[i] = first_seen(ends[i], a.window, a.first);
            const float *from_q = a.q + (size_t)r * a.q_stride + (size_t)head * DIM + 2 * t;
#pragma unroll
            for (u32 k = 0; k < DIM / 16; k++) {
                const float2 near = *(const float2 *)(from_q + 16 * k), far = *(const float2 *)(from_q + 16 * k + 8);
                q[k][i] = pack(near.x, near.y);
                q[k][2 + i] = pack(far.x, far.y);
            }
        }

        float sums[DIM / 8][4], largest[2] = {-infinity(), -infinity()}, total[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 n = 0; n < DIM / 8; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
        const float to_log2 = a.scale * LOG2_E;
        for (u32 s = 0; s < count; s++) {
            copy_wait<STAGES - 2>();
            __syncthreads(); // this stage is there for all, and all are done with the one before, whose place the next takes
            if (s + STAGES - 1 < count) {
                Kept::fetch(a, table, stages + (s + STAGES - 1) % STAGES * Kept::STAGE, start + (s + STAGES - 1) * POSITIONS, to);
            }
            copy_commit();
            char *stage = stages + s % STAGES * Kept::STAGE;
            const bf16 *keys = Kept::tile(bytes, stage) + part * SPAN * ROW, *values = keys + TILE;

            float scores[SPAN / 8][4];
#pragma unroll
            for (u32 n = 0; n < SPAN / 8; n++) {
                scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
#pragma unroll
                for (u32 k = 0; k < DIM / 32; k++) {
                    u32 b[4];
                    load_matrices(b, keys + (n * 8 + lane() % 8) * ROW + k * 32 + lane() / 8 * 8);
                    multiply_add(scores[n], q[2 * k], b[0], b[1]);
                    multiply_add(scores[n], q[2 * k + 1], b[2], b[3]);
                }
                Kept::scale(scores[n], Kept::key_scales(stage, part * SPAN + n * 8 + 2 * t));
            }
            // To powers of two; the branch is one of all scores, lest each wait for its own.
            if (a.soft_cap != 0.0f) {
#pragma unroll
                for (u32 n = 0; n < SPAN / 8; n++) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) scores[n][c] = capped(scores[n][c] * a.scale, a.soft_cap) * LOG2_E;
                }
            } else {
#pragma unroll
                for (u32 n = 0; n < SPAN / 8; n++) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) scores[n][c] *= to_log2;
                }
            }
            // Scores to exponentials, with what was summed before brought to the new largest score.
            const u32 first = start + s * POSITIONS + part * SPAN + 2 * t;
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 low = begins[i] > from ? begins[i] : from, high = ends[i] < to ? ends[i] : to;
                float highest = largest[i];
#pragma unroll
                for (u32 n = 0; n < SPAN / 8; n++) {
#pragma unroll
                    for (u32 c = 0; c < 2; c++) {
                        const u32 position = first + n * 8 + c;
                        float &score = scores[n][2 * i + c];
                        score = position >= low && position < high ? score : -infinity();
                        highest = fmaxf(highest, score);
                    }
                }
                highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
                const float base = highest == -infinity() ? 0.0f : highest; // nothing seen yet: all exponentials are 0
                const float factor = exp2_fast(largest[i] - base);
                largest[i] = highest;
                total[i] *= factor;
#pragma unroll
                for (u32 n = 0; n < SPAN / 8; n++) {
#pragma unroll
                    for (u32 c = 0; c < 2; c++) {
                        const float power = exp2_fast(scores[n][2 * i + c] - base);
                        scores[n][2 * i + c] = power;
                        total[i] += power;
                    }
                }
#pragma unroll
                for (u32 n = 0; n < DIM / 8; n++) {
                    sums[n][2 * i] *= factor;
                    sums[n][2 * i + 1] *= factor;
                }
            }
#pragma unroll
            for (u32 k = 0; k < SPAN / 16; k++) {
                const float2 near = Kept::value_scales(stage, part * SPAN + k * 16 + 2 * t), far = Kept::value_scales(stage, part * SPAN + k * 16 + 8 + 2 * t);
                const float *low = scores[2 * k], *high = scores[2 * k + 1];
                const u32 powers[4] = {Kept::powers(low[0], low[1], near), Kept::powers(low[2], low[3], near), Kept::powers(high[0], high[1], far), Kept::powers(high[2], high[3], far)};
#pragma unroll
                for (u32 n = 0; n < DIM / 16; n++) {
                    u32 b[4];
                    load_matrices_transposed(b, values + (k * 16 + lane() % 16) * ROW + n * 16 + lane() / 16 * 8);
                    multiply_add(sums[2 * n], powers, b[0], b[1]);
                    multiply_add(sums[2 * n + 1], powers, b[2], b[3]);
                }
            }
        }
        finish(a, chunk, tile, queries, group, sums, largest, total, begins, ends);
    }

    // Adds what the warps found for the same queries, and writes it.
    static __device__ __forceinline__ void finish(const AttentionArgs &a, const Chunk &chunk, const Tile &tile, u32 queries, u32 group,
                                                  float (&sums)[DIM / 8][4], float *largest, float *total, const u32 *begins, const u32 *ends) {
        DYNAMIC_SHARED(bytes);
        float *parts = (float *)bytes; // [part][query][DIM + 4]
        float2 *stats = (float2 *)(parts + 64 * (DIM + 4)); // [part][query]
        const u32 g = lane() / 4, t = lane() % 4, part = warp() / OF_QUERIES, first_row = warp() % OF_QUERIES * 16;
        // Whether this split is one of a query's, and its only one: known before anything waits for it.
        __shared__ u32 which[QUERIES];
        if (threadIdx.x < QUERIES) {
            const u32 query = tile.first_query + threadIdx.x;
            u32 found = NOT_OF_IT;
            if (query < queries) {
                const u32 end = a.positions[chunk.first + query / group] + 1, begin = first_seen(end, a.window, a.first), split = split_of(a, end);
                if (blockIdx.x >= begin / split && blockIdx.x <= (end - 1) / split) found = begin / split == (end - 1) / split ? ALONE : ONE_OF_SOME;
            }
            which[threadIdx.x] = found;
        }
        __syncthreads(); // all are done with the stages; no copy is under way: the last groups are empty
        for (u32 i = 0; i < 2; i++) {
            total[i] += __shfl_xor_sync(~0u, total[i], 1);
            total[i] += __shfl_xor_sync(~0u, total[i], 2);
            const u32 place = part * QUERIES + first_row + g + 8 * i;
            if (t == 0) {
                float2 found;
                found.x = largest[i];
                found.y = total[i];
                stats[place] = found;
            }
#pragma unroll
            for (u32 n = 0; n < DIM / 8; n++) {
                float2 pair;
                pair.x = sums[n][2 * i];
                pair.y = sums[n][2 * i + 1];
                *(float2 *)(parts + place * (DIM + 4) + n * 8 + 2 * t) = pair;
            }
        }
        __syncthreads();
        for (u32 row = warp(); row < QUERIES; row += THREADS / WARP) {
            const u32 query = tile.first_query + row;
            if (query >= queries) break;
            const u32 r = chunk.first + query / group, head = blockIdx.y * group + query % group;
            if (which[row] == NOT_OF_IT) continue;
            float top = -infinity(), sum = 0.0f, factors[OF_POSITIONS];
            for (u32 p = 0; p < OF_POSITIONS; p++) top = fmaxf(top, stats[p * QUERIES + row].x);
            for (u32 p = 0; p < OF_POSITIONS; p++) {
                factors[p] = exp2_fast(stats[p * QUERIES + row].x - top);
                sum += stats[p * QUERIES + row].y * factors[p];
            }
            const bool alone = which[row] == ALONE;
            const size_t place = ((size_t)r * a.heads + head) * a.splits + blockIdx.x;
            if (alone && a.sinks) sum += exp2_fast(a.sinks[head] * LOG2_E - top);
            for (u32 i = lane(); i < DIM; i += WARP) {
                float value = 0.0f;
                for (u32 p = 0; p < OF_POSITIONS; p++) value += parts[(p * QUERIES + row) * (DIM + 4) + i] * factors[p];
                if (alone) a.out[((size_t)r * a.heads + head) * DIM + i] = Of<bf16>::round(value / sum);
                else a.sums[place * DIM + i] = value;
            }
            if (!alone && lane() == 0) {
                float2 found;
                found.x = top * LN_2; // what merges has natural exponents
                found.y = sum;
                a.stats[place] = found;
            }
        }
    }
};

KERNEL(128, 128, 5) attention_mma_32_16(AttentionArgs a) { Attention<32, 16>::run(a); }
KERNEL(128, 128, 5) attention_mma_32_32(AttentionArgs a) { Attention<32, 32>::run(a); }
KERNEL(128, 128, 4) attention_mma_32_64(AttentionArgs a) { Attention<32, 64>::run(a); }
KERNEL(128, 168) attention_mma_64_16(AttentionArgs a) { Attention<64, 16>::run(a); }
KERNEL(128, 168) attention_mma_64_32(AttentionArgs a) { Attention<64, 32>::run(a); }
KERNEL(128, 168) attention_mma_64_64(AttentionArgs a) { Attention<64, 64>::run(a); }
KERNEL(128, 200) attention_mma_128_16(AttentionArgs a) { Attention<128, 16>::run(a); }
KERNEL(128, 200) attention_mma_128_32(AttentionArgs a) { Attention<128, 32>::run(a); }
KERNEL(128, 248) attention_mma_128_64(AttentionArgs a) { Attention<128, 64>::run(a); }
// Where a block has no shared memory for three stages.
KERNEL(128, 200) attention_mma_128_16_two(AttentionArgs a) { Attention<128, 16, 2>::run(a); }
KERNEL(128, 200) attention_mma_128_32_two(AttentionArgs a) { Attention<128, 32, 2>::run(a); }
KERNEL(128, 248) attention_mma_128_64_two(AttentionArgs a) { Attention<128, 64, 2>::run(a); }
// Keys and values in FP8: three stages fit everywhere.
KERNEL(128, 128, 5) attention_mma_32_16_fp8(AttentionArgs a) { Attention<32, 16, 3, Eight<32>>::run(a); }
KERNEL(128, 128, 5) attention_mma_32_32_fp8(AttentionArgs a) { Attention<32, 32, 3, Eight<32>>::run(a); }
KERNEL(128, 128, 4) attention_mma_32_64_fp8(AttentionArgs a) { Attention<32, 64, 3, Eight<32>>::run(a); }
KERNEL(128, 168) attention_mma_64_16_fp8(AttentionArgs a) { Attention<64, 16, 3, Eight<64>>::run(a); }
KERNEL(128, 168) attention_mma_64_32_fp8(AttentionArgs a) { Attention<64, 32, 3, Eight<64>>::run(a); }
KERNEL(128, 168) attention_mma_64_64_fp8(AttentionArgs a) { Attention<64, 64, 3, Eight<64>>::run(a); }
KERNEL(128, 200) attention_mma_128_16_fp8(AttentionArgs a) { Attention<128, 16, 3, Eight<128>>::run(a); }
KERNEL(128, 200) attention_mma_128_32_fp8(AttentionArgs a) { Attention<128, 32, 3, Eight<128>>::run(a); }
KERNEL(128, 248) attention_mma_128_64_fp8(AttentionArgs a) { Attention<128, 64, 3, Eight<128>>::run(a); }
