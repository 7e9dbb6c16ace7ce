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
    u32 inputs, outputs, add, form; // of w, where it is of 4 bits (four_bits.cuh)
};

typedef const bf16 *Bf16Rows;
DEVICE void weights_of(const MatmulArgs &a, Bf16Rows &w) { w = (Bf16Rows)a.w; }
DEVICE void weights_of(const MatmulArgs &a, FourBits &w) { w.records = (const u32 *)a.w, w.form = a.form; }

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

// A product whose rows are normalised when all of them is there; one ticket.
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
KERNEL(256, 80, 3) matmul_16_norm(MatmulNormArgs a) { matmul_norm<2>(a); }

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
KERNEL(256, 112, 2) matmul_16_int4_norm(MatmulNormArgs a) { matmul_norm<2, FourBits>(a); }
KERNEL(256, 80, 3) matmul_8_int4_heads(MatmulHeadsArgs a) { matmul_heads<1, FourBits>(a); }
KERNEL(256, 80, 3) matmul_16_int4_heads(MatmulHeadsArgs a) { matmul_heads<2, FourBits>(a); }

// More rows than these, 32 at a time: a block goes on with them while the tile's weights are in the cache.
KERNEL(256, 128, 2) matmul_32_int4(MatmulArgs a) {
    __shared__ float parts[WARPS][4][4][WARP];
    const u32 rows = *a.rows;
    FourBits w;
    weights_of(a, w);
    for (u32 tile = blockIdx.x; tile * OUTPUTS < a.outputs; tile += gridDim.x) {
        for (u32 first = 0; first < rows; first += 32) {
            const u32 some = rows - first < 32 ? rows - first : 32, g = lane() / 4;
            const bf16 *x = (const bf16 *)a.x + (size_t)(first + g) * a.inputs + lane() % 4 * 8;
            const auto load = [=](u32 n, u32 step) { return load_or_zero(x + (size_t)n * 8 * a.inputs + step * STEP, n * 8 + g < some); };
            const auto write = [&](u32 r, u32 at, float sum, float) { finish(a, first + r, at, sum); };
            sum_tile<4, false>(parts, w, a.inputs, a.outputs, tile, some, load, write);
        }
    }
}
