// top_tokens: the TOP tokens of the largest logits of each row, the largest first, of equal ones the lower token; places that are left over
// repeat the first, which is 0 if no logit is finite. A block for a row: each thread keeps its own best, then the block
// takes the best of all, TOP times.
struct TopTokensArgs {
    const float *logits; // [rows][vocabulary]
    u32 *out; // [rows][TOP]
    const u32 *rows;
    u32 vocabulary;
};

static constexpr u32 TOP = 8;

KERNEL(512, 64) top_tokens(TopTokensArgs a) {
    __shared__ u64 shared[32];
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        u64 own[TOP] = {};
        for (u32 token = threadIdx.x; token < a.vocabulary; token += blockDim.x) {
            const float z = a.logits[(size_t)r * a.vocabulary + token] + 0.0f;
            u64 key = finite(z) ? key_of(z, token) : 0;
            if (key <= own[TOP - 1]) continue;
#pragma unroll
            for (u32 i = 0; i < TOP; i++) {
                const u64 other = own[i];
                own[i] = key > other ? key : other;
                key = key > other ? other : key;
            }
        }
        u64 first = 0;
        for (u32 i = 0; i < TOP; i++) {
            const u64 best = block_max(own[0], shared);
            if (i == 0) first = best;
            if (best && own[0] == best) { // keys are all different: one thread gives its best away
#pragma unroll
                for (u32 j = 0; j + 1 < TOP; j++) own[j] = own[j + 1];
                own[TOP - 1] = 0;
            }
            if (threadIdx.x == 0) a.out[(size_t)r * TOP + i] = token_of(best ? best : first);
        }
    }
}
