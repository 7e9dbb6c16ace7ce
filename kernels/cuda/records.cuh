// Matrices of 4 bits, int8 and FP8, which stay so in memory and become bf16 in registers. It stands behind the prelude, before each file.
//
// A record is eight outputs and 128 inputs (four steps), what is missing in the last one is not computed with, and the records of eight outputs lie together. Lane
// 4 g + t has of each step the inputs 8 t to 8 t + 7 of output g. The same as kernels/src/memory/four_bit_records.rs and eight_bit_records.rs write.
static constexpr u32 RECORD_STEPS = 4;

// ---- 4 bits: 128 words of numbers, lane by lane, one for each step, the first four inputs in the low halves of its bytes, the others in the high ones; then the scales, f16,
// four for each output; then, unless the form is symmetric, their minima or zero points in the same order.
//
// A number less its zero point, 8 if the form is symmetric, is a whole number, which bf16 has without a rounding: products are of them, and sums are scaled. A weight with a
// minimum is `number scale + minimum` in f32, rounded once to bf16, and its sum has a scale of one.
static constexpr u32 SYMMETRIC = 1, MINIMA = 2, ZERO_POINTS = 3; // forms: those of kernels/src/cuda/matmul_launches.rs, which chooses kernels by the others

// What a lane has of a record: a word for each step, and in 16 bits for each step its output's scale and what stands beside it.
struct FourBitLane { uint4 numbers; u64 scales, beside; };

// A byte of `bytes`, a number, scaled: it becomes the top of the fraction of 128.
DEVICE float widen_number(u32 bytes, u32 byte, float scale, float least) {
    return __fmaf_rn(__uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044u | byte << 8)), scale, least);
}
DEVICE u32 with_minimum(u32 bytes, u32 byte, float scale, float least) {
    return round_pair(widen_number(bytes, byte, scale, least), widen_number(bytes, byte + 1, scale, least));
}
// A byte of `bytes` and the next one, numbers, less what `zeros` has beyond 128, negative: they become the ends of the fractions of 128.
DEVICE u32 less_zeros(u32 bytes, u32 byte, u32 zeros) { return fused_pairs(__byte_perm(bytes, 0x43u, 0x4140u + 0x0101u * byte), 0x3f803f80u, zeros); }
// Pairs of codes as the weights that they are.
DEVICE u32 scaled_pair(u32 pair, float scale) { return round_pair(__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xffff0000u) * scale); }
DEVICE uint4 scaled(const uint4 &codes, float scale) {
    uint4 y;
    y.x = scaled_pair(codes.x, scale), y.y = scaled_pair(codes.y, scale), y.z = scaled_pair(codes.z, scale), y.w = scaled_pair(codes.w, scale);
    return y;
}

struct FourBits {
    typedef FourBitLane Lane;
    const u32 *records;
    u32 form;

    __device__ __forceinline__ u32 words() const { return form == SYMMETRIC ? 144 : 160; }
    __device__ __forceinline__ Lane load(const u32 *record) const {
        Lane x;
        x.numbers = load_once(record + lane() * 4);
        const u64 *scales = (const u64 *)(record + 128) + lane() / 4;
        x.scales = *scales;
        x.beside = form == SYMMETRIC ? 0 : scales[8];
        return x;
    }
    // A lane's eight weights of a step.
    __device__ __forceinline__ uint4 widen(const Lane &x, u32 step) const {
        const u32 word = step < 2 ? (step ? x.numbers.y : x.numbers.x) : step == 2 ? x.numbers.z : x.numbers.w;
        const u32 low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
        const float beside = widen_half((u32)(x.beside >> 16 * step));
        uint4 y;
        if (form == MINIMA) {
            // Less 128 scales, which each number has too many.
            const float by = widen_half((u32)(x.scales >> 16 * step)), least = __fmaf_rn(-128.0f, by, beside);
            y.x = with_minimum(low, 0, by, least), y.y = with_minimum(low, 2, by, least), y.z = with_minimum(high, 0, by, least), y.w = with_minimum(high, 2, by, least);
        } else {
            // -128 and the zero point, twice.
            const u32 zeros = form == SYMMETRIC ? 0xc308c308u : 0xc300c300u + (u32)beside * 0x00010001u;
            y.x = less_zeros(low, 0, zeros), y.y = less_zeros(low, 2, zeros), y.z = less_zeros(high, 0, zeros), y.w = less_zeros(high, 2, zeros);
        }
        return y;
    }
    __device__ __forceinline__ float scale(const Lane &x, u32 step) const { return form == MINIMA ? 1.0f : widen_half((u32)(x.scales >> 16 * step)); }
    __device__ __forceinline__ uint4 weights(const Lane &x, u32 step) const { return scaled(widen(x, step), scale(x, step)); }
};

// ---- 8 bits: 256 words of codes, those of two steps lane by lane, then those of the other two; a step's are two words, four inputs each, the first two in bytes 1 and 3, the
// others in bytes 0 and 2. Then scales. Codes are bf16 without a rounding: products are of them, and sums are scaled.
struct EightBitLane { uint4 before, after; u64 scales; };

// A lane's two words of a step. No place is computed: registers have none.
DEVICE void codes_of(const EightBitLane &x, u32 step, u32 &first, u32 &second) {
    const bool later = step >= 2;
    first = step % 2 ? (later ? x.after.z : x.before.z) : later ? x.after.x : x.before.x;
    second = step % 2 ? (later ? x.after.w : x.before.w) : later ? x.after.y : x.before.y;
}
DEVICE EightBitLane load_codes(const u32 *record) {
    EightBitLane x;
    x.before = load_once(record + lane() * 4), x.after = load_once(record + 128 + lane() * 4);
    return x;
}

// FP8 (E4M3): a scale for each output, f32.
//
// The codes in bytes 1 and 3: their bits, 2^-120 of what they are as bf16 (of those below 2^-6 too, which are subnormal in both).
DEVICE u32 widen_codes(u32 bytes) { return fused_pairs((bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u); }

struct Fp8 {
    typedef EightBitLane Lane;
    const u32 *records;

    __device__ __forceinline__ u32 words() const { return 264; }
    __device__ __forceinline__ Lane load(const u32 *record) const {
        Lane x = load_codes(record);
        x.scales = record[256 + lane() / 4];
        return x;
    }
    __device__ __forceinline__ uint4 widen(const Lane &x, u32 step) const {
        u32 first, second;
        codes_of(x, step, first, second);
        uint4 y;
        y.x = widen_codes(first), y.y = widen_codes(first << 8), y.z = widen_codes(second), y.w = widen_codes(second << 8);
        return y;
    }
    __device__ __forceinline__ float scale(const Lane &x, u32) const { return __uint_as_float((u32)x.scales); }
    __device__ __forceinline__ uint4 weights(const Lane &x, u32 step) const { return scaled(widen(x, step), scale(x, step)); }
};

// int8: numbers and 128; four scales for each output, which are the middle of the bits of an f32, by 2^79: the CPU's (kernels/src/memory/matrix.rs).
//
// A byte as the end of the fraction of 2^23.
DEVICE float whole_number(u32 bytes, u32 byte) { return __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440u | byte)) - 8388736.0f; }
DEVICE u32 whole_pair(u32 bytes, u32 byte) { return round_pair(whole_number(bytes, byte), whole_number(bytes, byte + 2)); }

struct Int8 {
    typedef EightBitLane Lane;
    const u32 *records;

    __device__ __forceinline__ u32 words() const { return 272; }
    __device__ __forceinline__ Lane load(const u32 *record) const {
        Lane x = load_codes(record);
        x.scales = *((const u64 *)(record + 256) + lane() / 4);
        return x;
    }
    __device__ __forceinline__ uint4 widen(const Lane &x, u32 step) const {
        u32 first, second;
        codes_of(x, step, first, second);
        uint4 y;
        y.x = whole_pair(first, 1), y.y = whole_pair(first, 0), y.z = whole_pair(second, 1), y.w = whole_pair(second, 0);
        return y;
    }
    __device__ __forceinline__ float scale(const Lane &x, u32 step) const { return __uint_as_float((u32)(x.scales >> 16 * step) << 16 >> 3) * 604462909807314587353088.0f; }
    __device__ __forceinline__ uint4 weights(const Lane &x, u32 step) const { return scaled(widen(x, step), scale(x, step)); }
};

// ---- products
// The sums of a tile, as of bf16 weights (tiles.cuh). Warps split the records.
template <u32 TILES, bool GATED, typename Records, typename Load, typename Write>
DEVICE void sum_tile(float (&parts)[WARPS][TILES][4][WARP], const Records &w, u32 inputs, u32 all, u32 tile, u32 rows, const Load &load, const Write &write) {
    const u32 steps = inputs / STEP, records = (steps + RECORD_STEPS - 1) / RECORD_STEPS, each = (records + WARPS - 1) / WARPS;
    const u32 first = warp() * each, last = first + each < records ? first + each : records, eights = (all + 7) / 8;
    const u32 own = GATED ? tile : 2 * tile, other = GATED ? eights + tile : 2 * tile + 1 < eights ? 2 * tile + 1 : own;
    const size_t words = w.words();
    const u32 *upper = w.records + own * records * words, *lower = w.records + other * records * words;
    float sums[TILES][4] = {};
    typename Records::Lane next[2] = {};
    if (first < last) next[0] = w.load(upper + first * words), next[1] = w.load(lower + first * words);
#pragma unroll 1
    for (u32 record = first; record < last; record++) {
        const typename Records::Lane now[2] = {next[0], next[1]};
        // The next one is under way while this one is computed with.
        if (record + 1 < last) next[0] = w.load(upper + (record + 1) * words), next[1] = w.load(lower + (record + 1) * words);
#pragma unroll
        for (u32 k = 0; k < RECORD_STEPS; k++) {
            const u32 step = record * RECORD_STEPS + k;
            if (step >= steps) break;
            const uint4 w0 = w.widen(now[0], k), w1 = w.widen(now[1], k);
            const u32 near[4] = {w0.x, w1.x, w0.y, w1.y}, far[4] = {w0.z, w1.z, w0.w, w1.w};
            const float upper_scale = w.scale(now[0], k), lower_scale = w.scale(now[1], k);
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
                if (TILES > 2 && n * 8 >= rows) break; // nobody's
                const uint4 b = load(n, step);
                float c[4] = {};
                multiply_add(c, near, b.x, b.y);
                multiply_add(c, far, b.z, b.w);
#pragma unroll
                for (u32 i = 0; i < 4; i++) sums[n][i] = __fmaf_rn(i < 2 ? upper_scale : lower_scale, c[i], sums[n][i]);
            }
        }
    }
    for (u32 n = 0; n < TILES; n++) {
        for (u32 i = 0; i < 4; i++) parts[warp()][n][i][lane()] = sums[n][i];
    }
    write_tile<TILES, GATED>(parts, all, tile, rows, write);
}
