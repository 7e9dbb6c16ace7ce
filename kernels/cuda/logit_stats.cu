// logit_stats: of each part of CHUNK logits of a row the best finite one with its token, and the sum of e^(logit - largest): what the
// arg max, min-p, the nucleus and confidence begin with. A block for a part. The logits are those of `vocabulary` tokens from `first_token` on.
struct LogitStats { u64 best; float sum; u32 unused; };
struct LogitStatsArgs {
    const float *logits; // [rows][vocabulary]
    LogitStats *stats; // [rows][parts]
    const u32 *rows;
    u32 vocabulary, first_token;
};

static constexpr u32 CHUNK = 4096;

KERNEL(256, 40) logit_stats(LogitStatsArgs a) {
    __shared__ u64 shared[32];
    __shared__ float sums[32];
    const u32 rows = *a.rows, first = blockIdx.x * CHUNK, end = first + CHUNK < a.vocabulary ? first + CHUNK : a.vocabulary;
    for (u32 r = blockIdx.y; r < rows; r += gridDim.y) {
        const float *logits = a.logits + (size_t)r * a.vocabulary;
        u64 best = 0;
        for (u32 token = first + threadIdx.x; token < end; token += blockDim.x) {
            const float z = logits[token] + 0.0f; // -0 is 0: a tie goes to the lower token
            const u64 key = finite(z) ? key_of(z, a.first_token + token) : 0;
            best = key > best ? key : best;
        }
        best = block_max(best, shared);
        const float largest = best ? number_of(best) : 0.0f;
        float sum = 0.0f;
        for (u32 token = first + threadIdx.x; token < end; token += blockDim.x) {
            const float z = logits[token];
            // A NaN or an infinity leaves no confidence in any token; -infinity counts as good as nothing.
            sum += finite(z) || z < 0.0f ? exp_of(z - largest) : infinity();
        }
        sum = block_sum(sum, sums);
        if (threadIdx.x == 0) {
            LogitStats &stats = a.stats[(size_t)r * gridDim.x + blockIdx.x];
            stats.best = best;
            stats.sum = sum;
        }
    }
}
