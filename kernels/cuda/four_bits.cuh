// Matrices of 4 bits, which stay so in memory and become bf16 in registers. It stands behind the prelude, before each file.
//
// A record is eight outputs and 128 inputs (four steps): 128 words of numbers, lane by lane; then the scales, f16, four for each output; then,
// unless the form is symmetric, their minima or zero points in the same order. Lane 4 g + t has of each step, in a word, the inputs 8 t to
// 8 t + 7 of output g: the first four in the low halves of its bytes, the others in the high ones. The records of eight outputs lie together; what is missing in the
// last one is not computed with. The same as kernels/src/memory/four_bit_records.rs writes.
//
// A weight is `number scale + least` in f32, rounded once to bf16. For whole zero points the sum is exact before that: it is the bf16 of the file's number.
static constexpr u32 SYMMETRIC = 1, MINIMA = 2, ZERO_POINTS = 3, RECORD_STEPS = 4; // forms: those of kernels/src/cuda/matmul_launches.rs

struct FourBits { const u32 *records; u32 form; };

// What a lane has of a record: a word for each step, and in 16 bits for each step its output's scale and what stands beside it.
struct FourBitLane { uint4 numbers; u64 scales, beside; };

DEVICE size_t record_words(u32 form) { return form == SYMMETRIC ? 144 : 160; }

DEVICE FourBitLane load_record(const u32 *record, u32 form) {
    FourBitLane x;
    x.numbers = load_once(record + lane() * 4);
    const u64 *scales = (const u64 *)(record + 128) + lane() / 4;
    x.scales = *scales;
    x.beside = form == SYMMETRIC ? 0 : scales[8];
    return x;
}

// A byte of `bytes`, a number, as one of eight weights: it becomes the top of the fraction of 128.
DEVICE float widen_number(u32 bytes, u32 byte, float scale, float least) {
    return __fmaf_rn(__uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044u | byte << 8)), scale, least);
}

// A lane's eight weights of a step.
DEVICE uint4 widen_step(const FourBitLane &x, u32 form, u32 step) {
    const u32 word = step < 2 ? (step ? x.numbers.y : x.numbers.x) : step == 2 ? x.numbers.z : x.numbers.w;
    const float scale = widen_half((u32)(x.scales >> 16 * step)), beside = widen_half((u32)(x.beside >> 16 * step));
    // Less 128 scales, which each number has too many.
    const float least = form == MINIMA ? __fmaf_rn(-128.0f, scale, beside) : -scale * (form == ZERO_POINTS ? 128.0f + beside : 136.0f);
    const u32 low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
    uint4 y;
    y.x = round_pair(widen_number(low, 0, scale, least), widen_number(low, 1, scale, least));
    y.y = round_pair(widen_number(low, 2, scale, least), widen_number(low, 3, scale, least));
    y.z = round_pair(widen_number(high, 0, scale, least), widen_number(high, 1, scale, least));
    y.w = round_pair(widen_number(high, 2, scale, least), widen_number(high, 3, scale, least));
    return y;
}

// The sums of a tile, as of bf16 weights (prelude.cuh). Warps split the records: where inputs are a multiple of 1024, an output's bits are those of the same weights in bf16.
template <u32 TILES, bool GATED, typename Load, typename Write>
DEVICE void sum_tile(float (&parts)[WARPS][TILES][4][WARP], const FourBits &w, u32 inputs, u32 all, u32 tile, u32 rows, const Load &load, const Write &write) {
    const u32 steps = inputs / STEP, records = (steps + RECORD_STEPS - 1) / RECORD_STEPS, each = (records + WARPS - 1) / WARPS;
    const u32 first = warp() * each, last = first + each < records ? first + each : records, eights = (all + 7) / 8, form = w.form;
    const u32 own = GATED ? tile : 2 * tile, other = GATED ? eights + tile : 2 * tile + 1 < eights ? 2 * tile + 1 : own;
    const size_t words = record_words(form);
    const u32 *upper = w.records + own * records * words, *lower = w.records + other * records * words;
    float c[TILES][4] = {};
    FourBitLane next[2] = {};
    if (first < last) next[0] = load_record(upper + first * words, form), next[1] = load_record(lower + first * words, form);
#pragma unroll 1
    for (u32 record = first; record < last; record++) {
        const FourBitLane now[2] = {next[0], next[1]};
        // The next one is under way while this one is computed with.
        if (record + 1 < last) {
            next[0] = load_record(upper + (record + 1) * words, form);
            next[1] = load_record(lower + (record + 1) * words, form);
        }
#pragma unroll
        for (u32 k = 0; k < RECORD_STEPS; k++) {
            const u32 step = record * RECORD_STEPS + k;
            if (step >= steps) break;
            const uint4 w0 = widen_step(now[0], form, k), w1 = widen_step(now[1], form, k);
            const u32 near[4] = {w0.x, w1.x, w0.y, w1.y}, far[4] = {w0.z, w1.z, w0.w, w1.w};
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
                if (TILES > 2 && n * 8 >= rows) break; // nobody's
                const uint4 b = load(n, step);
                multiply_add(c[n], near, b.x, b.y);
                multiply_add(c[n], far, b.z, b.w);
            }
        }
    }
    for (u32 n = 0; n < TILES; n++) {
        for (u32 i = 0; i < 4; i++) parts[warp()][n][i][lane()] = c[n][i];
    }
    write_tile<TILES, GATED>(parts, all, tile, rows, write);
}
