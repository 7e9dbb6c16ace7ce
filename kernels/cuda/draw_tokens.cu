// draw_tokens: the arg max of scaled logit plus noise over each part of CHUNK logits, among what top-k, top-p and min-p leave; pick_tokens:
// the best part's token. Greedy sequences take the best logit, which logit_stats has found. Where a group's rank has the logits of some tokens alone,
// those from `first_token` on, it picks its best key, and the token from the keys of all ranks; top-k, top-p and min-p need all logits.
//
// The noise is the CPU's, bit for bit, and so are the scaling and the sum: the tokens are the same.
struct LogitStats { u64 best; float sum; u32 unused; };
struct DrawArgs {
    const float *logits; // [samples][vocabulary], processed
    const LogitStats *stats; // [samples][parts], of the same logits
    const u64 *least; // [samples]: of nucleus, or null where no sequence has top-k or top-p
    const Sample *samples;
    const Sampler *samplers;
    u64 *best; // [samples][parts]
    const u32 *count;
    u32 vocabulary, parts, first_token;
};
struct PickArgs {
    const u64 *best; // of sample i and part p at i * sample_stride + p * part_stride
    u32 *tokens; // [samples], or null
    u64 *keys; // [samples]: the best itself, or null
    const u32 *count;
    u32 parts, sample_stride, part_stride;
};

static constexpr u32 CHUNK = 4096;

KERNEL(256, 48) draw_tokens(DrawArgs a) {
    __shared__ u64 shared[32];
    const u32 count = *a.count, first = blockIdx.x * CHUNK, end = first + CHUNK < a.vocabulary ? first + CHUNK : a.vocabulary;
    for (u32 i = blockIdx.y; i < count; i += gridDim.y) {
        const Sample sample = a.samples[i];
        const Sampler &s = a.samplers[sample.chunk];
        const LogitStats *stats = a.stats + (size_t)i * a.parts;
        u64 best = stats[blockIdx.x].best;
        if (!s.greedy) {
            u64 likeliest = 0;
            for (u32 p = threadIdx.x; p < a.parts; p += blockDim.x) likeliest = stats[p].best > likeliest ? stats[p].best : likeliest;
            likeliest = block_max(likeliest, shared);
            // min-p is relative to the likeliest token; without it the offset is -infinity.
            const float floor = __fadd_rn(number_of(likeliest), s.floor_offset);
            const u64 least = a.least ? a.least[i] : 0;
            const u64 keys = noise_keys(s.seed, sample.position);
            best = 0;
            for (u32 token = first + threadIdx.x; token < end; token += blockDim.x) {
                const float z = a.logits[(size_t)i * a.vocabulary + token];
                const u32 id = a.first_token + token;
                if (!finite(z) || z < floor || key_of(z, id) < least) continue;
                const u64 key = key_of(__fadd_rn(__fmul_rn(z, s.inverse), noise(keys, id)) + 0.0f, id);
                best = key > best ? key : best;
            }
            best = block_max(best, shared);
        }
        if (threadIdx.x == 0) a.best[(size_t)i * a.parts + blockIdx.x] = best;
    }
}

KERNEL(128, 40) pick_tokens(PickArgs a) {
    const u32 count = *a.count, warps = gridDim.x * (blockDim.x / WARP);
    for (u32 i = blockIdx.x * (blockDim.x / WARP) + warp(); i < count; i += warps) {
        u64 best = 0;
        for (u32 p = lane(); p < a.parts; p += WARP) {
            const u64 key = a.best[(size_t)i * a.sample_stride + (size_t)p * a.part_stride];
            best = key > best ? key : best;
        }
        best = warp_max(best);
        if (lane() == 0 && a.tokens) a.tokens[i] = token_of(best);
        if (lane() == 0 && a.keys) a.keys[i] = best;
    }
}
