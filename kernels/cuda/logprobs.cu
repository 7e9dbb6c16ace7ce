// logprobs: what log-probabilities are made of, for samples of the chunks that want them: the largest plain logit and the sum of e^(logit -
// largest), the logit of a token, and the likeliest tokens with theirs, of equal ones the lower first. The token is the one drawn, or the one
// that the prompt has in that place. A block for a sample; the sums are those of logit_stats, in the order of the parts.
struct LogitStats { u64 best; float sum; u32 unused; };
struct LogprobWish { u32 top, prompt_at, start, count; }; // NOTHING: none wanted; the prompt's tokens of places from `start` on are prompt_tokens[prompt_at..][..count]
static constexpr u32 TOP = 20;
struct LogprobFound { float largest, sum, logit; u32 token, found, tokens[TOP]; float logits[TOP]; };
struct LogprobsArgs {
    const float *logits; // [samples][vocabulary], plain
    const LogitStats *stats; // [samples][parts], of the same logits
    const Sample *samples;
    const u32 *tokens; // [samples]: drawn
    const LogprobWish *wishes; // [chunk]
    const u32 *prompt_tokens;
    LogprobFound *out; // [samples]
    const u32 *count;
    u32 vocabulary, parts;
};

KERNEL(512, 48) logprobs(LogprobsArgs a) {
    __shared__ u64 shared[32];
    const u32 count = *a.count;
    for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
        const Sample sample = a.samples[i];
        const LogprobWish wish = a.wishes[sample.chunk];
        if (wish.top == NOTHING) continue;
        const float *logits = a.logits + (size_t)i * a.vocabulary;
        LogprobFound &out = a.out[i];
        u64 below = ~0ull;
        u32 found = 0;
        for (; found < wish.top && found < TOP; found++) {
            u64 best = 0;
            for (u32 token = threadIdx.x; token < a.vocabulary; token += blockDim.x) {
                const float z = logits[token] + 0.0f;
                const u64 key = finite(z) ? key_of(z, token) : 0;
                if (key < below && key > best) best = key;
            }
            best = block_max(best, shared);
            if (!best) break;
            if (threadIdx.x == 0) {
                out.tokens[found] = token_of(best);
                out.logits[found] = number_of(best);
            }
            below = best;
        }
        if (threadIdx.x != 0) continue;
        const LogitStats *stats = a.stats + (size_t)i * a.parts;
        u64 best = 0;
        for (u32 p = 0; p < a.parts; p++) best = stats[p].best > best ? stats[p].best : best;
        const float largest = best ? number_of(best) : infinity();
        float sum = 0.0f;
        for (u32 p = 0; p < a.parts; p++) {
            const float of_part = stats[p].best ? number_of(stats[p].best) : largest;
            if (stats[p].sum > 0.0f) sum += stats[p].sum * exp_of(of_part - largest);
        }
        const u32 place = sample.position - wish.start, token = place < wish.count ? a.prompt_tokens[wish.prompt_at + place] : a.tokens[i];
        out.largest = largest;
        out.sum = sum;
        out.logit = token < a.vocabulary ? logits[token] : -infinity();
        out.token = token;
        out.found = found;
    }
}
