// candidates: what would be drawn in each row without the token that was drawn, then without that one too, and so on: CANDIDATES of them, the best first,
// of what top-k, top-p and min-p leave; NOTHING where no more is left. A block for a row: each thread keeps its own best, then the block takes
// the best of all, CANDIDATES times. Noise, scaling and sum are those of draw_tokens. The logits are of all tokens.
struct LogitStats { u64 best; float sum; u32 unused; };
struct CandidatesArgs {
    const float *logits; // [samples][vocabulary], processed
    const LogitStats *stats; // [samples][parts], of the same logits
    const u64 *least; // [samples]: of nucleus, or null where no sequence has top-k or top-p
    const Sample *samples;
    const Sampler *samplers;
    const u32 *tokens; // [samples]: what was drawn
    u32 *out; // [samples][CANDIDATES]
    const u32 *count;
    u32 vocabulary, parts;
};

static constexpr u32 CANDIDATES = 8;

KERNEL(512, 64, 2) candidates(CandidatesArgs a) {
    __shared__ u64 shared[32];
    const u32 count = *a.count;
    for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
        const Sample sample = a.samples[i];
        const Sampler &s = a.samplers[sample.chunk];
        u64 likeliest = 0;
        for (u32 p = threadIdx.x; p < a.parts; p += blockDim.x) {
            const u64 best = a.stats[(size_t)i * a.parts + p].best;
            likeliest = best > likeliest ? best : likeliest;
        }
        likeliest = block_max(likeliest, shared);
        const float floor = s.greedy ? -infinity() : __fadd_rn(number_of(likeliest), s.floor_offset);
        const u64 least = a.least && !s.greedy ? a.least[i] : 0;
        const u64 keys = noise_keys(s.seed, sample.position);
        const u32 drawn = a.tokens[i];
        u64 own[CANDIDATES] = {};
        for (u32 token = threadIdx.x; token < a.vocabulary; token += blockDim.x) {
            const float z = a.logits[(size_t)i * a.vocabulary + token];
            if (token == drawn || !finite(z) || z < floor || key_of(z, token) < least) continue;
            const float value = s.greedy ? z : __fadd_rn(__fmul_rn(z, s.inverse), noise(keys, token));
            keep_best(own, key_of(value + 0.0f, token));
        }
        for (u32 c = 0; c < CANDIDATES; c++) {
            const u64 best = take_best(own, shared);
            if (threadIdx.x == 0) a.out[(size_t)i * CANDIDATES + c] = best ? token_of(best) : NOTHING;
        }
    }
}
