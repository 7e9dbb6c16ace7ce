// Products of few rows on tensor cores: a tile of sixteen outputs by a block of eight warps, which split the inputs. It stands behind the prelude, before each file.
static constexpr u32 WARPS = 8, OUTPUTS = 16, STEP = 32;
template <u32 TILES, bool GATED, typename Write>
DEVICE void write_tile(float (&parts)[WARPS][TILES][4][WARP], u32 all, u32 tile, u32 rows, const Write &write);

// Sixteen bytes of a row, or zeros.
DEVICE uint4 load_or_zero(const bf16 *at, bool wanted) {
    uint4 zero;
    zero.x = zero.y = zero.z = zero.w = 0;
    return wanted ? *(const uint4 *)at : zero;
}

// So many steps of a tile's sums. All of their loads are under way before the first product waits for one: memory answers after some hundred cycles, whatever is asked.
template <u32 TILES, u32 DEPTH, typename Load>
DEVICE void sum_steps(float (&c)[TILES][4], const bf16 *upper, const bf16 *lower, u32 step, u32 rows, const Load &load) {
    constexpr bool AHEAD = TILES <= 2; // more rows have no registers for it
    uint4 w0[DEPTH], w1[DEPTH], x[DEPTH][AHEAD ? TILES : 1];
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) {
        w0[d] = load_once(upper + (step + d) * STEP);
        w1[d] = load_once(lower + (step + d) * STEP);
    }
    if (AHEAD) {
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
#pragma unroll
            for (u32 n = 0; n < TILES; n++) x[d][n] = load(n, step + d);
        }
    }
#pragma unroll
    for (u32 d = 0; d < DEPTH; d++) {
        const u32 near[4] = {w0[d].x, w1[d].x, w0[d].y, w1[d].y}, far[4] = {w0[d].z, w1[d].z, w0[d].w, w1[d].w};
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            if (!AHEAD && n * 8 >= rows) break; // nobody's
            const uint4 b = AHEAD ? x[d][n] : load(n, step + d);
            multiply_add(c[n], near, b.x, b.y);
            multiply_add(c[n], far, b.z, b.w);
        }
    }
}

// The sums of a tile for up to TILES times eight rows, for all threads of a block. `load(n, step)` is what a thread has of that step of row 8 n + g, g a quarter of its lane: the eight inputs
// from 8 (lane % 4) on. `write` gets each sum: row, output, sum. The second eight outputs of a GATED tile are those `all` behind the first eight: it gets the sum of the
// opposite one too. Which rows there are changes no sum.
template <u32 TILES, bool GATED, typename Load, typename Write>
DEVICE void sum_tile(float (&parts)[WARPS][TILES][4][WARP], const bf16 *w, u32 inputs, u32 all, u32 tile, u32 rows, const Load &load, const Write &write) {
    const u32 steps = inputs / STEP, each = (steps + WARPS - 1) / WARPS, g = lane() / 4, t = lane() % 4;
    const u32 first = warp() * each, last = first + each < steps ? first + each : steps;
    // Outputs of a tile that are written, and how far behind its first eight the others lie.
    constexpr u32 OWN = GATED ? OUTPUTS / 2 : OUTPUTS;
    const u32 behind = GATED ? all : 8, output = tile * OWN + g;
    const bool upper = output < all, lower = GATED ? upper : output + 8 < all;
    w += (size_t)(upper ? output : 0) * inputs + t * 8;
    const bf16 *below = w + (lower ? (size_t)behind * inputs : 0);
    float c[TILES][4] = {};
    constexpr u32 DEPTH = TILES == 1 ? 4 : 2;
    u32 step = first;
#pragma unroll 1
    for (; step + DEPTH <= last; step += DEPTH) sum_steps<TILES, DEPTH>(c, w, below, step, rows, load);
#pragma unroll 1
    for (; step < last; step++) sum_steps<TILES, 1>(c, w, below, step, rows, load);
    for (u32 n = 0; n < TILES; n++) {
        for (u32 i = 0; i < 4; i++) parts[warp()][n][i][lane()] = c[n][i];
    }
    write_tile<TILES, GATED>(parts, all, tile, rows, write);
}

// What the warps have of a tile's sums, added in their order and written.
template <u32 TILES, bool GATED, typename Write>
DEVICE void write_tile(float (&parts)[WARPS][TILES][4][WARP], u32 all, u32 tile, u32 rows, const Write &write) {
    constexpr u32 OWN = GATED ? OUTPUTS / 2 : OUTPUTS, SUMS = GATED ? 2 : 4;
    __syncthreads();
    // Element i of a thread's four: output g or behind it, row 2 t or 2 t + 1.
    for (u32 place = threadIdx.x; place < TILES * SUMS * WARP; place += blockDim.x) {
        const u32 n = place / (SUMS * WARP), i = place / WARP % SUMS, l = place % WARP;
        const u32 r = n * 8 + l % 4 * 2 + i % 2, at = tile * OWN + l / 4 + i / 2 * 8;
        float sum = 0.0f, opposite = 0.0f;
        for (u32 p = 0; p < WARPS; p++) sum += parts[p][n][i][l];
        if (GATED) for (u32 p = 0; p < WARPS; p++) opposite += parts[p][n][i + 2][l];
        if (r < rows && at < all) write(r, at, sum, opposite);
    }
    __syncthreads(); // the parts have been read
}
