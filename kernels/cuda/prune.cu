// prune: the test of proposals in the middle of a verify pass (D3d). prune_rows finds the row that predicts each tested proposal, for
// gather_rows, rms_norm and score_tokens of its alternatives; prune_test then has by how much the best alternative leads, in the sampler's
// own operations, and ends the chunk behind a row whose proposal is beaten by too much. One thread for a test.
struct PruneTest { u32 chunk, offset, position, proposal; };
struct PruneArgs {
    const PruneTest *tests;
    const u32 *tokens; // [test][ALTERNATIVES + 1]: alternatives (the proposal itself where there are fewer), then the proposal
    const float *scores; // [test][ALTERNATIVES + 1]: their logits
    const float *most; // [test]: largest margin that stays
    const Chunk *chunks;
    const Sampler *samplers;
    u32 *rows; // [test]: the row, or NOTHING if it has left or nothing behind it is wanted
    float *margins; // [test]: NaN where there is no row
    u32 *live; // [chunk]: rows that are wanted
    const u32 *count;
};

static constexpr u32 ALTERNATIVES = 8;

KERNEL(128, 32) prune_rows(PruneArgs a) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= *a.count) return;
    const PruneTest test = a.tests[i];
    const Chunk chunk = a.chunks[test.chunk];
    const u32 live = chunk.rows < a.live[test.chunk] ? chunk.rows : a.live[test.chunk];
    a.rows[i] = test.offset + 1 < live ? chunk.first + test.offset : NOTHING;
}

DEVICE float value_of(const Sampler &s, u64 keys, u32 token, float logit) {
    for (u32 b = 0; b < s.bias_len; b++) {
        if (s.bias_tokens[b] == token) logit = __fadd_rn(logit, s.bias[b]);
    }
    return s.greedy ? logit : __fadd_rn(__fmul_rn(logit, s.inverse), noise(keys, token));
}

KERNEL(128, 48) prune_test(PruneArgs a) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= *a.count) return;
    if (a.rows[i] == NOTHING) {
        a.margins[i] = infinity() - infinity();
        return;
    }
    const PruneTest test = a.tests[i];
    const Sampler &s = a.samplers[test.chunk];
    const u64 keys = noise_keys(s.seed, test.position);
    const u32 *tokens = a.tokens + (size_t)i * (ALTERNATIVES + 1);
    const float *scores = a.scores + (size_t)i * (ALTERNATIVES + 1);
    u64 best = 0;
    for (u32 k = 0; k < ALTERNATIVES; k++) {
        if (tokens[k] == test.proposal) continue;
        const float value = value_of(s, keys, tokens[k], scores[k]) + 0.0f;
        const u64 key = finite(value) ? key_of(value, tokens[k]) : 0;
        best = key > best ? key : best;
    }
    const float own = value_of(s, keys, test.proposal, scores[ALTERNATIVES]), lead = __fsub_rn(number_of(best), own);
    float margin;
    if (!best) margin = -infinity();
    else if (!finite(own)) margin = infinity();
    else if (number_of(best) == own) margin = token_of(best) < test.proposal ? 1.17549435e-38f : 0.0f;
    else margin = s.greedy ? lead : __fmul_rn(lead, s.temperature);
    a.margins[i] = margin;
    if (margin > a.most[i]) atomicMin(&a.live[test.chunk], test.offset + 1);
}
