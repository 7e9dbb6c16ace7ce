// confidence: the probability that the softmax of a row's plain logits gives to its token, 0 to 1; from the parts of logit_stats, a
// warp for a row, in the order of the parts. 0 for a token whose logit is not finite.
struct LogitStats { u64 best; float sum; u32 unused; };
struct ConfidenceArgs {
    const float *logits; // [rows][vocabulary]
    const LogitStats *stats; // [rows][parts]
    const u32 *tokens;
    float *out;
    const u32 *rows;
    u32 vocabulary, parts;
};

KERNEL(128, 40) confidence(ConfidenceArgs a) {
    const u32 rows = *a.rows, warps = gridDim.x * (blockDim.x / WARP);
    for (u32 r = blockIdx.x * (blockDim.x / WARP) + warp(); r < rows; r += warps) {
        const LogitStats *stats = a.stats + (size_t)r * a.parts;
        u64 best = 0;
        for (u32 p = lane(); p < a.parts; p += WARP) best = stats[p].best > best ? stats[p].best : best;
        best = warp_max(best);
        const float largest = number_of(best);
        float sum = 0.0f;
        for (u32 p = lane(); p < a.parts; p += WARP) {
            const float of_part = stats[p].best ? number_of(stats[p].best) : largest;
            if (stats[p].sum > 0.0f) sum += stats[p].sum * exp_of(of_part - largest);
        }
        sum = warp_sum(sum);
        if (lane() == 0) {
            const u32 token = a.tokens[r];
            const float z = token < a.vocabulary ? a.logits[(size_t)r * a.vocabulary + token] : -infinity();
            const float probability = best && finite(z) ? exp_of(z - largest) / sum : 0.0f;
            a.out[r] = finite(probability) ? probability : 0.0f;
        }
    }
}
