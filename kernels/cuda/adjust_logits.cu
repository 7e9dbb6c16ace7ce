// adjust_logits: bias and penalties of each sample's sequence, in place, as the CPU's History::adjust: bias first, then each token that
// prompt or output has is penalised once. Proposals of the chunk that stand before the sample count as output. The
// operations round one by one: the bits are the CPU's. Last, tokens without a bit in the sample's mask become impossible. A block for a sample;
// those of sequences without any of that are left alone. The logits are those of `vocabulary` tokens from `first` on: of a group, what this
// rank has.
struct AdjustArgs {
    float *logits; // [samples][vocabulary]
    const Sample *samples;
    const Sampler *samplers; // of each chunk
    const u32 *proposals; // [chunk][proposal_stride]
    const u32 *masks; // [..][mask_words]: a bit for each token that may be drawn
    const u32 *mask_of; // [chunk]: the mask of a sample with no proposal before it, those of others follow; NOTHING: all may. Null: none has any
    const u32 *count;
    u32 vocabulary, proposal_stride, first, mask_words;
};

DEVICE float penalised(const Sampler &s, float logit, u32 output) {
    logit = logit > 0.0f ? __fdiv_rn(logit, s.repetition) : __fmul_rn(logit, s.repetition);
    if (output > 0) {
        logit = __fsub_rn(logit, __fmul_rn(s.frequency, (float)output));
        logit = __fsub_rn(logit, s.presence);
    }
    return logit;
}

KERNEL(512, 48) adjust_logits(AdjustArgs a) {
    const u32 count = *a.count;
    for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
        const Sample sample = a.samples[i];
        const Sampler &s = a.samplers[sample.chunk];
        float *logits = a.logits + (size_t)i * a.vocabulary;
        // The first entry of a token adds all of its entries, in their order.
        for (u32 b = threadIdx.x; b < s.bias_len; b += blockDim.x) {
            const u32 token = s.bias_tokens[b], at = token - a.first;
            bool first = at < a.vocabulary;
            for (u32 other = 0; other < b && first; other++) first = s.bias_tokens[other] != token;
            if (!first) continue;
            float logit = logits[at];
            for (u32 other = b; other < s.bias_len; other++) {
                if (s.bias_tokens[other] == token) logit = __fadd_rn(logit, s.bias[other]);
            }
            logits[at] = logit;
        }
        __syncthreads(); // penalties come after bias
        if (s.counts) {
            const u32 *since = a.proposals + (size_t)sample.chunk * a.proposal_stride;
            for (u32 at = threadIdx.x; at < a.vocabulary; at += blockDim.x) {
                const u32 token = a.first + at, seen = s.counts[token];
                if (!seen) continue;
                bool later = false;
                for (u32 p = 0; p < sample.since; p++) later |= since[p] == token;
                if (!later) logits[at] = penalised(s, logits[at], seen & 0x7fffffffu);
            }
            for (u32 p = threadIdx.x; p < sample.since; p += blockDim.x) {
                const u32 token = since[p], at = token - a.first;
                bool first = at < a.vocabulary;
                for (u32 other = 0; other < p && first; other++) first = since[other] != token;
                if (!first) continue;
                u32 again = 0;
                for (u32 other = p; other < sample.since; other++) again += since[other] == token;
                logits[at] = penalised(s, logits[at], (s.counts[token] & 0x7fffffffu) + again);
            }
        }
        if (a.mask_of && a.mask_of[sample.chunk] != NOTHING) {
            __syncthreads(); // what is impossible stays so
            const u32 *mask = a.masks + (size_t)(a.mask_of[sample.chunk] + sample.since) * a.mask_words;
            for (u32 at = threadIdx.x; at < a.vocabulary; at += blockDim.x) {
                const u32 token = a.first + at;
                if (!(mask[token / 32] >> (token % 32) & 1)) logits[at] = -infinity();
            }
        }
    }
}
