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
            keep_best(own, finite(z) ? key_of(z, token) : 0);
        }
        u64 first = 0;
        for (u32 i = 0; i < TOP; i++) {
            const u64 best = take_best(own, shared);
            if (i == 0) first = best;
            if (threadIdx.x == 0) a.out[(size_t)r * TOP + i] = token_of(best ? best : first);
        }
    }
}
