// nucleus: the least key (see key_of) that top-k and top-p leave in a row; 0 where nothing is cut. A block for a row.
//
// Keys are ordered by logit, then token, and all different: whoever has the least key has the set. It is found digit by digit from the top
// (a radix select): a histogram of what has the digits found so far, in counts for top-k, in mass for top-p. Mass is the
// weight e^((z - largest) / temperature) in fixed point: integers add up to the same in any order. Shared memory adds 32 bits at once and
// spins for 64, so a mass is two words.
struct LogitStats { u64 best; float sum; u32 unused; };
struct NucleusArgs {
    const float *logits; // [samples][vocabulary], processed
    const LogitStats *stats; // [samples][parts], of the same logits
    const Sample *samples;
    const Sampler *samplers;
    u64 *least; // [samples]
    const u32 *count;
    u32 vocabulary, parts;
};

static constexpr u32 DIGITS = 256;

struct Row { const float *logits; u32 vocabulary; float largest, inverse; };
struct Shared { u32 low[DIGITS], high[DIGITS], members[DIGITS]; u64 key, target; u32 found; u64 warps[32]; };

// Weights below 2^-44 of the largest count nothing; a vocabulary of 2^19 cannot overflow.
DEVICE u64 mass_of(const Row &row, float z) { return (u64)(exp_of(__fmul_rn(__fsub_rn(z, row.largest), row.inverse)) * 17592186044416.0f); }

DEVICE void add_mass(Shared &shared, u32 digit, u64 mass) {
    const u32 part = (u32)mass, sum = atomicAdd(&shared.low[digit], part) + part;
    const u32 rest = (u32)(mass >> 32) + (sum < part); // the carry
    if (rest) atomicAdd(&shared.high[digit], rest);
}

DEVICE u64 added_mass(const Shared &shared, u32 digit) { return (u64)shared.high[digit] << 32 | shared.low[digit]; }

// The least key such that keys from it on reach `target`, among keys of at least `floor`.
DEVICE u64 select(const Row &row, bool by_mass, u64 floor, u64 target, Shared &shared) {
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (u32 d = threadIdx.x; d < DIGITS; d += blockDim.x) shared.low[d] = shared.high[d] = shared.members[d] = 0;
        __syncthreads();
        for (u32 token = threadIdx.x; token < row.vocabulary; token += blockDim.x) {
            const float z = row.logits[token];
            const u64 key = key_of(z, token);
            if (!finite(z) || key < floor || (shift < 56 && key >> (shift + 8) != prefix >> (shift + 8))) continue;
            const u32 digit = (u32)(key >> shift) % DIGITS;
            if (by_mass) add_mass(shared, digit, mass_of(row, z));
            atomicAdd(&shared.members[digit], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 above = 0;
            u32 digit = DIGITS - 1;
            const auto in = [&](u32 d) { return by_mass ? added_mass(shared, d) : (u64)shared.members[d]; };
            while (digit > 0 && above + in(digit) < target) above += in(digit--);
            shared.key = prefix | (u64)digit << shift;
            shared.target = target - (above < target ? above : target);
            shared.found = shared.members[digit];
        }
        __syncthreads();
        prefix = shared.key;
        target = shared.target;
        if (shared.found <= 1) break; // the one with this prefix, whatever its other digits are
    }
    return prefix;
}

KERNEL(1024, 48) nucleus(NucleusArgs a) {
    __shared__ Shared shared;
    const u32 count = *a.count;
    for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
        const Sampler &s = a.samplers[a.samples[i].chunk];
        const bool by_count = s.top_k > 0 && s.top_k < a.vocabulary, by_mass = s.top_p < 1.0f;
        u64 least = 0;
        if (!s.greedy && (by_count || by_mass)) {
            u64 best = 0;
            for (u32 p = threadIdx.x; p < a.parts; p += blockDim.x) {
                const u64 key = a.stats[(size_t)i * a.parts + p].best;
                best = key > best ? key : best;
            }
            best = block_max(best, shared.warps);
            const Row row = {a.logits + (size_t)i * a.vocabulary, a.vocabulary, number_of(best), s.inverse};
            if (best && by_count) least = select(row, false, 0, s.top_k, shared);
            if (best && by_mass) {
                if (threadIdx.x == 0) shared.low[0] = shared.high[0] = 0;
                __syncthreads();
                u64 mass = 0;
                for (u32 token = threadIdx.x; token < a.vocabulary; token += blockDim.x) {
                    const float z = row.logits[token];
                    if (finite(z) && key_of(z, token) >= least) mass += mass_of(row, z);
                }
                add_mass(shared, 0, mass);
                __syncthreads();
                const u64 target = (u64)((double)s.top_p * (double)added_mass(shared, 0));
                __syncthreads(); // the total has been read
                // The digits found may stop short of what top-k cut off.
                const u64 of_mass = select(row, true, least, target ? target : 1, shared);
                least = of_mass > least ? of_mass : least;
            }
        }
        if (threadIdx.x == 0) a.least[i] = least;
    }
}
