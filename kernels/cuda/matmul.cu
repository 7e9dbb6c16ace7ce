// matmul for few rows: out = x w^T + bias, added to what `out` holds if asked; w is [outputs][inputs], row after row. It reads each
// weight once, whatever the number of rows up to its bucket. An output's sum is the same whatever rows stand beside it.
//
// bf16: tensor cores with the weights as the large operand, 16 outputs of a block, up to 8 rows (or 16) as the small one. Eight warps
// split the inputs and are added in their order. A thread reads 16 bytes of weights at a time and takes the
// eight inputs of them in two products: in which order a product counts its inputs does not matter, if both operands do alike.
//
// What follows a product row by row, it does itself in bf16 (tails.cuh): the activation, where gate and up of the same columns are one tile; bias, norm, rotation and store
// of a head, by the block that writes its last outputs; the norm that begins the next branch, by the block that writes the last tile of all.
struct MatmulArgs {
    const void *x; // [rows][inputs] of the type of w
    const void *w;
    const float *bias; // or null
    float *out; // [rows][outputs]
    const u32 *rows;
    u32 inputs, outputs, add, form; // of w, where it is in records (records.cuh)
    float *parts; // [splits][rows][outputs], and a ticket for each tile of 64 rows and 128 outputs, where there are splits
    u32 *tickets;
};

typedef const bf16 *Bf16Rows;
DEVICE void weights_of(const MatmulArgs &a, Bf16Rows &w) { w = (Bf16Rows)a.w; }
DEVICE void weights_of(const MatmulArgs &a, FourBits &w) { w.records = (const u32 *)a.w, w.form = a.form; }
DEVICE void weights_of(const MatmulArgs &a, Fp8 &w) { w.records = (const u32 *)a.w; }
DEVICE void weights_of(const MatmulArgs &a, Int8 &w) { w.records = (const u32 *)a.w; }

DEVICE void finish(const MatmulArgs &a, u32 r, u32 output, float sum) {
    float *out = a.out + (size_t)r * a.outputs + output;
    if (a.bias) sum += a.bias[output];
    *out = a.add ? *out + sum : sum;
}

// TILES times eight rows; W is what the weights are. `write` gets each sum as sum_tile gives it; of a GATED product the second half of outputs stands beside the first. `after` gets each tile that is
// written, for all threads.
template <u32 TILES, bool GATED, typename W, typename Write, typename After> DEVICE void matmul_tiles(const MatmulArgs &a, const Write &write, const After &after) {
    __shared__ float parts[WARPS][TILES][4][WARP];
    const u32 rows = *a.rows, g = lane() / 4, inputs = a.inputs, all = GATED ? a.outputs / 2 : a.outputs;
    if (!rows) return; // a step in which nothing drafts any more reads no weights
    W w;
    weights_of(a, w);
    const bf16 *x = (const bf16 *)a.x + (size_t)g * inputs + lane() % 4 * 8;
    const auto load = [=](u32 n, u32 step) { return load_or_zero(x + (size_t)n * 8 * inputs + step * STEP, n * 8 + g < rows); };
    for (u32 tile = blockIdx.x; tile * (GATED ? OUTPUTS / 2 : OUTPUTS) < all; tile += gridDim.x) {
        sum_tile<TILES, GATED>(parts, w, inputs, all, tile, rows, load, write);
        after(tile);
    }
}

template <u32 TILES, typename W = Bf16Rows> DEVICE void matmul_alone(const MatmulArgs &a) {
    matmul_tiles<TILES, false, W>(a, [&](u32 r, u32 at, float sum, float) { finish(a, r, at, sum); }, [](u32) {});
}
KERNEL(256, 80, 3) matmul_8_bf16(MatmulArgs a) { matmul_alone<1>(a); }
KERNEL(256, 80, 3) matmul_16_bf16(MatmulArgs a) { matmul_alone<2>(a); }

// Gate and up to what the activation makes of them: `out` is bf16, [rows][half of the outputs].
struct MatmulActivateArgs { MatmulArgs product; u32 activation; };
template <u32 TILES, typename W = Bf16Rows> DEVICE void matmul_activate(const MatmulActivateArgs &given) {
    const MatmulArgs &a = given.product;
    const u32 cols = a.outputs / 2;
    const auto write = [&](u32 r, u32 at, float gate, float up) {
        if (a.bias) gate += a.bias[at], up += a.bias[cols + at];
        ((bf16 *)a.out)[(size_t)r * cols + at] = Of<bf16>::round(activation(given.activation, gate) * gated_by(given.activation, up));
    };
    matmul_tiles<TILES, true, W>(a, write, [](u32) {});
}
KERNEL(256, 80, 3) matmul_8_activate(MatmulActivateArgs a) { matmul_activate<1>(a); }
KERNEL(256, 80, 3) matmul_16_activate(MatmulActivateArgs a) { matmul_activate<2>(a); }

// A product whose rows are normalised when all of them is there, one after the other, so of very few; one ticket.
struct MatmulNormArgs { MatmulArgs product; RmsNormArgs norm; u32 *tickets; };
template <u32 TILES, typename W = Bf16Rows> DEVICE void matmul_norm(const MatmulNormArgs &given) {
    __shared__ float shared[32];
    const MatmulArgs &a = given.product;
    const auto after = [&](u32) {
        if (!is_last(given.tickets, (a.outputs + OUTPUTS - 1) / OUTPUTS)) return;
        const u32 rows = *a.rows;
        for (u32 r = 0; r < rows; r++) norm_row<bf16, false>(given.norm, r, shared);
    };
    matmul_tiles<TILES, false, W>(a, [&](u32 r, u32 at, float sum, float) { finish(a, r, at, sum); }, after);
}
KERNEL(256, 80, 3) matmul_8_norm(MatmulNormArgs a) { matmul_norm<1>(a); }

// Queries, keys and values, each head finished when all of it is there; a ticket for each head, whose outputs are whole tiles.
struct MatmulHeadsArgs { MatmulArgs product; QkvArgs heads; u32 *tickets; };
template <u32 TILES, typename W = Bf16Rows> DEVICE void matmul_heads(const MatmulHeadsArgs &given) {
    const MatmulArgs &a = given.product;
    const auto after = [&](u32 tile) {
        const u32 tiles = given.heads.head_dim / OUTPUTS, head = tile / tiles;
        if (!is_last(given.tickets + head, tiles)) return;
        const u32 rows = *a.rows;
        for (u32 r = warp(); r < rows; r += WARPS) finish_head<bf16>(given.heads, r, head);
    };
    matmul_tiles<TILES, false, W>(a, [&](u32 r, u32 at, float sum, float) { finish(a, r, at, sum); }, after);
}
KERNEL(256, 80, 3) matmul_8_heads(MatmulHeadsArgs a) { matmul_heads<1>(a); }
KERNEL(256, 80, 3) matmul_16_heads(MatmulHeadsArgs a) { matmul_heads<2>(a); }

// f32, for tests: a warp for an output of a row.
KERNEL(256, 48) matmul_f32(MatmulArgs a) {
    const u32 items = *a.rows * a.outputs, warps = gridDim.x * WARPS;
    for (u32 item = blockIdx.x * WARPS + warp(); item < items; item += warps) {
        const u32 r = item / a.outputs, output = item % a.outputs;
        const float *x = (const float *)a.x + (size_t)r * a.inputs, *w = (const float *)a.w + (size_t)output * a.inputs;
        float sum = 0.0f;
        for (u32 i = lane(); i < a.inputs; i += WARP) sum += x[i] * w[i];
        sum = warp_sum(sum);
        if (lane() == 0) finish(a, r, output, sum);
    }
}

// Weights of 4 bits: the same kernels.
KERNEL(256, 80, 3) matmul_8_int4(MatmulArgs a) { matmul_alone<1, FourBits>(a); }
KERNEL(256, 80, 3) matmul_16_int4(MatmulArgs a) { matmul_alone<2, FourBits>(a); }
KERNEL(256, 80, 3) matmul_8_int4_activate(MatmulActivateArgs a) { matmul_activate<1, FourBits>(a); }
KERNEL(256, 80, 3) matmul_16_int4_activate(MatmulActivateArgs a) { matmul_activate<2, FourBits>(a); }
KERNEL(256, 80, 3) matmul_8_int4_norm(MatmulNormArgs a) { matmul_norm<1, FourBits>(a); }
KERNEL(256, 80, 3) matmul_8_int4_heads(MatmulHeadsArgs a) { matmul_heads<1, FourBits>(a); }
KERNEL(256, 80, 3) matmul_16_int4_heads(MatmulHeadsArgs a) { matmul_heads<2, FourBits>(a); }

// And of FP8.
KERNEL(256, 80, 3) matmul_8_fp8(MatmulArgs a) { matmul_alone<1, Fp8>(a); }
KERNEL(256, 80, 3) matmul_16_fp8(MatmulArgs a) { matmul_alone<2, Fp8>(a); }
KERNEL(256, 80, 3) matmul_8_fp8_activate(MatmulActivateArgs a) { matmul_activate<1, Fp8>(a); }
KERNEL(256, 80, 3) matmul_16_fp8_activate(MatmulActivateArgs a) { matmul_activate<2, Fp8>(a); }
KERNEL(256, 80, 3) matmul_8_fp8_norm(MatmulNormArgs a) { matmul_norm<1, Fp8>(a); }
KERNEL(256, 80, 3) matmul_8_fp8_heads(MatmulHeadsArgs a) { matmul_heads<1, Fp8>(a); }
KERNEL(256, 80, 3) matmul_16_fp8_heads(MatmulHeadsArgs a) { matmul_heads<2, Fp8>(a); }

// And of int8.
KERNEL(256, 80, 3) matmul_8_int8(MatmulArgs a) { matmul_alone<1, Int8>(a); }
KERNEL(256, 128, 2) matmul_16_int8(MatmulArgs a) { matmul_alone<2, Int8>(a); }
KERNEL(256, 80, 3) matmul_8_int8_activate(MatmulActivateArgs a) { matmul_activate<1, Int8>(a); }
KERNEL(256, 80, 3) matmul_16_int8_activate(MatmulActivateArgs a) { matmul_activate<2, Int8>(a); }
KERNEL(256, 80, 3) matmul_8_int8_norm(MatmulNormArgs a) { matmul_norm<1, Int8>(a); }
KERNEL(256, 80, 3) matmul_8_int8_heads(MatmulHeadsArgs a) { matmul_heads<1, Int8>(a); }
KERNEL(256, 128, 2) matmul_16_int8_heads(MatmulHeadsArgs a) { matmul_heads<2, Int8>(a); }

// More rows: a block has 64 of them and 128 outputs, a warp sixteen of these. Where such tiles are few, blocks split the inputs, and the last of a tile adds their sums in order.
// Rows have the bits that they have among few if eight blocks do, as eight warps above, or if PARTS: then one has all eight parts, and adds them likewise.
//
// Rows come by cp.async, four steps at a time, and weights through registers: those of the next four steps are under way while these are computed with.
static constexpr u32 WIDE_ROWS = 64, WIDE_OUTPUTS = WARPS * OUTPUTS;
struct WideRows { uint4 of[2][RECORD_STEPS][WIDE_ROWS][4]; };

// Steps of a stage: from `step` on, up to four of those before `last`.
struct Stage { u32 step, last; };
DEVICE void fetch_rows(uint4 (&to)[RECORD_STEPS][WIDE_ROWS][4], const MatmulArgs &a, u32 first, u32 rows, const Stage &at) {
    const u32 r = threadIdx.x / 4, part = threadIdx.x % 4;
    const bf16 *from = (const bf16 *)a.x + (size_t)(first + r < rows ? first + r : 0) * a.inputs + part * 8;
#pragma unroll
    for (u32 d = 0; d < RECORD_STEPS; d++) {
        const bool wanted = at.step + d < at.last && first + r < rows; // zeros where there are none
        copy_async(&to[d][r][part], from + (wanted ? (at.step + d) * STEP : 0), wanted);
    }
}

// What a lane has of sixteen outputs: eight and eight. Of bf16 a step: four would leave no room for a second block.
struct WideBf16 {
    typedef uint4 Lane;
    static constexpr bool IN_RECORDS = false;
    const bf16 *upper;
    u32 behind; // numbers of the other eight outputs
    __device__ __forceinline__ WideBf16(const MatmulArgs &a, u32 output) {
        const u32 g = output + lane() / 4;
        upper = (const bf16 *)a.w + (size_t)(g < a.outputs ? g : 0) * a.inputs + lane() % 4 * 8;
        behind = g + 8 < a.outputs ? 8 * a.inputs : 0;
    }
    static __device__ __forceinline__ u32 part(u32 steps, u32 parts) { return (steps + parts - 1) / parts; }
    __device__ __forceinline__ void load(Lane (&x)[2], u32 step, u32 last) const {
        if (step < last) x[0] = load_once(upper + step * STEP), x[1] = load_once(upper + behind + step * STEP);
    }
    __device__ __forceinline__ uint4 widen(const Lane &x, u32) const { return x; }
    __device__ __forceinline__ float scale(const Lane &, u32) const { return 1.0f; }
};
template <typename Records> struct WideRecords {
    typedef typename Records::Lane Lane;
    static constexpr bool IN_RECORDS = true;
    Records records;
    const u32 *upper;
    u32 behind; // words of the other eight outputs
    __device__ __forceinline__ WideRecords(const MatmulArgs &a, u32 output) {
        weights_of(a, records);
        const u32 count = (a.inputs / STEP + RECORD_STEPS - 1) / RECORD_STEPS, eights = (a.outputs + 7) / 8;
        const u32 own = output / 8 < eights ? output / 8 : 0, other = own + 1 < eights ? own + 1 : own;
        const u32 words = count * records.words();
        upper = records.records + (size_t)own * words, behind = (other - own) * words;
    }
    static __device__ __forceinline__ u32 part(u32 steps, u32 parts) { return ((steps + RECORD_STEPS - 1) / RECORD_STEPS + parts - 1) / parts * RECORD_STEPS; }
    __device__ __forceinline__ void load(Lane (&x)[2], u32 step, u32 last) const {
        if (step >= last) return;
        const u32 from = step / RECORD_STEPS * records.words();
        x[0] = records.load(upper + from), x[1] = records.load(upper + behind + from);
    }
    __device__ __forceinline__ uint4 widen(const Lane &x, u32 d) const { return records.widen(x, d); }
    __device__ __forceinline__ float scale(const Lane &x, u32 d) const { return records.scale(x, d); }
};

// The products of one of a stage's steps, of TILES times eight rows.
template <u32 TILES, typename W> DEVICE void add_step(float (&sums)[TILES][4], const W &w, const typename W::Lane (&now)[2], const uint4 (&held)[WIDE_ROWS][4], u32 d) {
    const uint4 w0 = w.widen(now[0], d), w1 = w.widen(now[1], d);
    const u32 near[4] = {w0.x, w1.x, w0.y, w1.y}, far[4] = {w0.z, w1.z, w0.w, w1.w};
    const float upper = w.scale(now[0], d), lower = w.scale(now[1], d);
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
        const uint4 b = held[n * 8 + lane() / 4][lane() % 4];
        float of_scale[4] = {};
        float(&c)[4] = W::IN_RECORDS ? of_scale : sums[n];
        multiply_add(c, near, b.x, b.y);
        multiply_add(c, far, b.z, b.w);
#pragma unroll
        for (u32 i = 0; i < 4; i++) if (W::IN_RECORDS) sums[n][i] = __fmaf_rn(i < 2 ? upper : lower, c[i], sums[n][i]);
    }
}

// Those of `rows` from `first` on, and outputs from `outputs` on, of a block.
template <u32 TILES, typename W, bool PARTS> DEVICE void wide_tile(WideRows &held, const MatmulArgs &a, u32 first, u32 rows, u32 outputs) {
    const u32 steps = a.inputs / STEP, output = outputs + warp() * OUTPUTS;
    const u32 part = W::part(steps, PARTS ? WARPS : gridDim.y);
    // The part that is at work ends before this step, if the inputs do not.
    u32 end = PARTS ? part : (blockIdx.y + 1) * part, place = 0;
    Stage at;
    at.step = end - part, at.last = end < steps ? end : steps;
    const W w(a, output);
    constexpr u32 KEPT = PARTS ? TILES : 1;
    float sums[TILES][4] = {}, all[KEPT][4] = {};
    typename W::Lane next[2] = {};
    fetch_rows(held.of[0], a, first, rows, at);
    copy_commit();
    w.load(next, at.step, at.last);
#pragma unroll 1
    for (bool more = true; more; place ^= 1) {
        typename W::Lane now[2] = {next[0], next[1]};
        Stage then;
        then.step = at.step + RECORD_STEPS;
        const bool ends = then.step >= end;
        if (ends) then.step = end, end += part;
        then.last = end < steps ? end : steps;
        const u32 some = at.last - at.step < RECORD_STEPS ? at.last - at.step : at.last > at.step ? RECORD_STEPS : 0;
        more = PARTS ? then.step < WARPS * part : !ends;
        copy_wait<0>();
        __syncthreads(); // this stage is there for all, and all are done with the one before, whose place the next takes
        if (more) {
            fetch_rows(held.of[place ^ 1], a, first, rows, then);
            copy_commit();
            if (W::IN_RECORDS) w.load(next, then.step, then.last);
        }
        if (W::IN_RECORDS) {
#pragma unroll 1
            for (u32 d = 0; d < some; d++) add_step<TILES>(sums, w, now, held.of[place][d], d);
        } else {
#pragma unroll
            for (u32 d = 0; d < RECORD_STEPS; d++) {
                if (d >= some) break;
                now[0] = next[0], now[1] = next[1];
                // The step behind it, of this stage or the next: parts are one behind the other.
                w.load(next, at.step + d + 1, steps);
                add_step<TILES>(sums, w, now, held.of[place][d], d);
            }
        }
        at = then;
#pragma unroll
        for (u32 n = 0; n < KEPT; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) if (PARTS && ends) all[n][i] += sums[n][i], sums[n][i] = 0.0f;
        }
    }
    const bool whole = PARTS || gridDim.y == 1;
    // Element i of a thread's four: output g or eight behind it, row 2 t or 2 t + 1.
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 r = first + n * 8 + lane() % 4 * 2 + i % 2, at = output + lane() / 4 + i / 2 * 8;
            if (r >= rows || at >= a.outputs) continue;
            const float sum = PARTS ? all[n % KEPT][i] : sums[n][i];
            if (whole) finish(a, r, at, sum);
            else a.parts[((size_t)blockIdx.y * rows + r) * a.outputs + at] = sum;
        }
    }
    if (whole || !is_last(a.tickets + blockIdx.x, gridDim.y)) return;
    const u32 own = outputs + threadIdx.x % WIDE_OUTPUTS, last = first + WIDE_ROWS < rows ? first + WIDE_ROWS : rows;
    for (u32 r = first + threadIdx.x / WIDE_OUTPUTS; r < last && own < a.outputs; r += blockDim.x / WIDE_OUTPUTS) {
        float sum = 0.0f;
        for (u32 p = 0; p < gridDim.y; p++) sum += a.parts[((size_t)p * rows + r) * a.outputs + own];
        finish(a, r, own, sum);
    }
}
template <typename W, bool PARTS = false> DEVICE void matmul_64(const MatmulArgs &a) {
    __shared__ WideRows held;
    // Blocks side by side have the same weights.
    const u32 rows = *a.rows, across = (rows + WIDE_ROWS - 1) / WIDE_ROWS;
    if (blockIdx.x >= (a.outputs + WIDE_OUTPUTS - 1) / WIDE_OUTPUTS * across) return;
    const u32 first = blockIdx.x % across * WIDE_ROWS, outputs = blockIdx.x / across * WIDE_OUTPUTS;
    if (rows - first <= WIDE_ROWS / 2) wide_tile<WIDE_ROWS / 16, W, PARTS>(held, a, first, rows, outputs);
    else wide_tile<WIDE_ROWS / 8, W, PARTS>(held, a, first, rows, outputs);
}
KERNEL(256, 128, 2) matmul_64_bf16(MatmulArgs a) { matmul_64<WideBf16>(a); }
KERNEL(256, 128, 2) matmul_64_int4(MatmulArgs a) { matmul_64<WideRecords<FourBits>>(a); }
KERNEL(256, 128, 2) matmul_64_fp8(MatmulArgs a) { matmul_64<WideRecords<Fp8>>(a); }
KERNEL(256, 128, 2) matmul_64_int8(MatmulArgs a) { matmul_64<WideRecords<Int8>>(a); }
KERNEL(256, 128, 2) matmul_64_bf16_parts(MatmulArgs a) { matmul_64<WideBf16, true>(a); }
KERNEL(256, 224, 1) matmul_64_int4_parts(MatmulArgs a) { matmul_64<WideRecords<FourBits>, true>(a); }
KERNEL(256, 224, 1) matmul_64_fp8_parts(MatmulArgs a) { matmul_64<WideRecords<Fp8>, true>(a); }
KERNEL(256, 224, 1) matmul_64_int8_parts(MatmulArgs a) { matmul_64<WideRecords<Int8>, true>(a); }
