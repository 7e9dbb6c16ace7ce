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

// More rows than these, 16 at a time: a block goes on with them while the tile's weights are in the cache.
template <typename W> DEVICE void matmul_128(const MatmulArgs &a) {
    constexpr u32 SOME = 16;
    __shared__ float parts[WARPS][SOME / 8][4][WARP];
    const u32 rows = *a.rows;
    W w;
    weights_of(a, w);
    for (u32 tile = blockIdx.x; tile * OUTPUTS < a.outputs; tile += gridDim.x) {
        for (u32 first = 0; first < rows; first += SOME) {
            const u32 some = rows - first < SOME ? rows - first : SOME, g = lane() / 4;
            const bf16 *x = (const bf16 *)a.x + (size_t)(first + g) * a.inputs + lane() % 4 * 8;
            const auto load = [=](u32 n, u32 step) { return load_or_zero(x + (size_t)n * 8 * a.inputs + step * STEP, n * 8 + g < some); };
            const auto write = [&](u32 r, u32 at, float sum, float) { finish(a, first + r, at, sum); };
            sum_tile<SOME / 8, false>(parts, w, a.inputs, a.outputs, tile, some, load, write);
        }
    }
}
KERNEL(256, 128, 2) matmul_128_bf16(MatmulArgs a) { matmul_128<Bf16Rows>(a); }
KERNEL(256, 128, 2) matmul_128_int4(MatmulArgs a) { matmul_128<FourBits>(a); }
KERNEL(256, 128, 2) matmul_128_fp8(MatmulArgs a) { matmul_128<Fp8>(a); }
KERNEL(256, 128, 2) matmul_128_int8(MatmulArgs a) { matmul_128<Int8>(a); }

// Many rows, each with the bits that it has among few: a block has 64 rows and 128 outputs, a warp sixteen of these. It goes through the inputs alone, and so through one
// after the other of the parts that eight warps have of them above, and adds these in the same order. Rows come by cp.async, two steps of 64 at a time, three of these under way.
static constexpr u32 WIDE_ROWS = 64, WIDE_TILES = WIDE_ROWS / 8, WIDE_STEPS = 2, WIDE_STAGES = 3;
struct WideRows { uint4 of[WIDE_STAGES][WIDE_STEPS][WIDE_ROWS][4]; };

// Asks for those steps of 64 rows; zeros where there are none.
DEVICE void fetch_rows(WideRows &held, const MatmulArgs &a, u32 first, u32 rows, u32 steps, u32 stage) {
    const u32 r = threadIdx.x / 4, part = threadIdx.x % 4;
#pragma unroll
    for (u32 d = 0; d < WIDE_STEPS; d++) {
        const u32 step = stage * WIDE_STEPS + d;
        const bool wanted = step < steps && first + r < rows;
        const bf16 *from = (const bf16 *)a.x + (wanted ? (size_t)(first + r) * a.inputs + step * STEP + part * 8 : 0);
        copy_async(&held.of[stage % WIDE_STAGES][d][r][part], from, wanted);
    }
}

// A warp's weights, step after step: what it has of one, and of what follows already.
struct WideBf16 {
    static constexpr bool SCALES_SUMS = false;
    static constexpr u32 SCALE_STEPS = 1;
    const bf16 *upper, *lower;
    uint4 next[2];
    u32 each;
    __device__ __forceinline__ WideBf16(const MatmulArgs &a, u32 output, u32 steps) {
        const u32 g = output + lane() / 4;
        upper = (const bf16 *)a.w + (size_t)(g < a.outputs ? g : 0) * a.inputs + lane() % 4 * 8;
        lower = g + 8 < a.outputs ? upper + (size_t)8 * a.inputs : upper;
        each = (steps + WARPS - 1) / WARPS;
        next[0] = *(const uint4 *)upper, next[1] = *(const uint4 *)lower;
    }
    __device__ __forceinline__ void take(u32 step, u32 steps, uint4 (&w)[2]) {
        w[0] = next[0], w[1] = next[1];
        if (step + 1 < steps) next[0] = *(const uint4 *)(upper + (step + 1) * STEP), next[1] = *(const uint4 *)(lower + (step + 1) * STEP);
    }
    __device__ __forceinline__ float scale(u32, u32) const { return 1.0f; }
};
template <typename Records> struct WideRecords {
    static constexpr bool SCALES_SUMS = true;
    static constexpr u32 SCALE_STEPS = Records::SCALE_STEPS;
    Records records;
    const u32 *upper, *lower;
    typename Records::Lane held[2];
    u32 each;
    __device__ __forceinline__ WideRecords(const MatmulArgs &a, u32 output, u32 steps) {
        weights_of(a, records);
        const u32 count = (steps + RECORD_STEPS - 1) / RECORD_STEPS, eights = (a.outputs + 7) / 8;
        const u32 own = output / 8 < eights ? output / 8 : 0, other = own + 1 < eights ? own + 1 : own;
        const size_t words = count * (size_t)records.words();
        upper = records.records + own * words, lower = records.records + other * words;
        each = (count + WARPS - 1) / WARPS * RECORD_STEPS;
    }
    __device__ __forceinline__ void take(u32 step, u32, uint4 (&w)[2]) {
        const u32 at = step / RECORD_STEPS * records.words();
        if (step % RECORD_STEPS == 0) held[0] = records.load(upper + at), held[1] = records.load(lower + at);
        w[0] = records.widen(held[0], step % RECORD_STEPS), w[1] = records.widen(held[1], step % RECORD_STEPS);
    }
    __device__ __forceinline__ float scale(u32 half, u32 step) const { return records.scale(held[half], step % RECORD_STEPS); }
};

template <typename W> DEVICE void matmul_64(const MatmulArgs &a) {
    __shared__ WideRows held;
    constexpr u32 WIDE_OUTPUTS = WARPS * OUTPUTS;
    const u32 rows = *a.rows, steps = a.inputs / STEP, stages = (steps + WIDE_STEPS - 1) / WIDE_STEPS, g = lane() / 4, t = lane() % 4;
    // Blocks side by side have the same weights.
    const u32 across = (rows + WIDE_ROWS - 1) / WIDE_ROWS, tiles = (a.outputs + WIDE_OUTPUTS - 1) / WIDE_OUTPUTS * across;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u32 first = tile % across * WIDE_ROWS, output = tile / across * WIDE_OUTPUTS + warp() * OUTPUTS;
        W weights(a, output, steps);
        float c[WIDE_TILES][4] = {}, sums[WIDE_TILES][4] = {}, of_scale[WIDE_TILES][4] = {};
        float(&into)[WIDE_TILES][4] = W::SCALES_SUMS ? of_scale : c;
        const auto add_part = [&]() {
#pragma unroll
            for (u32 n = 0; n < WIDE_TILES; n++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) sums[n][i] += c[n][i], c[n][i] = 0.0f;
            }
        };
        for (u32 s = 0; s < WIDE_STAGES - 1; s++) {
            if (s < stages) fetch_rows(held, a, first, rows, steps, s);
            copy_commit();
        }
        u32 left = weights.each;
#pragma unroll 1
        for (u32 s = 0; s < stages; s++) {
            copy_wait<WIDE_STAGES - 2>();
            __syncthreads(); // this stage is there for all, and all are done with the one before, whose place the next takes
            if (s + WIDE_STAGES - 1 < stages) fetch_rows(held, a, first, rows, steps, s + WIDE_STAGES - 1);
            copy_commit();
#pragma unroll
            for (u32 d = 0; d < WIDE_STEPS; d++) {
                const u32 step = s * WIDE_STEPS + d;
                if (step >= steps) break;
                if (left == 0) add_part(), left = weights.each;
                left--;
                uint4 w[2];
                weights.take(step, steps, w);
                const u32 near[4] = {w[0].x, w[1].x, w[0].y, w[1].y}, far[4] = {w[0].z, w[1].z, w[0].w, w[1].w};
#pragma unroll
                for (u32 n = 0; n < WIDE_TILES; n++) {
                    const uint4 b = held.of[s % WIDE_STAGES][d][n * 8 + g][t];
                    multiply_add(into[n], near, b.x, b.y);
                    multiply_add(into[n], far, b.z, b.w);
                }
                if (W::SCALES_SUMS && (step % W::SCALE_STEPS == W::SCALE_STEPS - 1 || step + 1 == steps)) add_scaled(c, of_scale, weights.scale(0, step), weights.scale(1, step));
            }
        }
        add_part();
        // Element i of a thread's four: output g or eight behind it, row 2 t or 2 t + 1.
#pragma unroll
        for (u32 n = 0; n < WIDE_TILES; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 r = first + n * 8 + 2 * t + i % 2, at = output + g + i / 2 * 8;
                if (r < rows && at < a.outputs) finish(a, r, at, sums[n][i]);
            }
        }
        __syncthreads(); // the rows have been read
    }
}
KERNEL(256, 128, 2) matmul_64_bf16(MatmulArgs a) { matmul_64<WideBf16>(a); }
KERNEL(256, 200, 1) matmul_64_int4(MatmulArgs a) { matmul_64<WideRecords<FourBits>>(a); }
KERNEL(256, 200, 1) matmul_64_fp8(MatmulArgs a) { matmul_64<WideRecords<Fp8>>(a); }
KERNEL(256, 200, 1) matmul_64_int8(MatmulArgs a) { matmul_64<WideRecords<Int8>>(a); }
