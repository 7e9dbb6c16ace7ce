// matmul for few rows: out = x w^T + bias, added to what `out` holds if asked; w is [outputs][inputs], row after row. It reads each
// weight once, whatever the number of rows up to its bucket. An output's sum is the same whatever rows stand beside it.
//
// bf16: tensor cores with the weights as the large operand, 16 outputs of a block, up to 8 rows (or 16) as the small one. Eight warps
// split the inputs and are added in their order. A thread reads 16 bytes of weights at a time and takes the
// eight inputs of them in two products: in which order a product counts its inputs does not matter, if both operands do alike.
struct MatmulArgs {
    const void *x; // [rows][inputs] of the type of w
    const void *w;
    const float *bias; // or null
    float *out; // [rows][outputs]
    const u32 *rows;
    u32 inputs, outputs, add;
};

static constexpr u32 WARPS = 8, OUTPUTS = 16, STEP = 32;

DEVICE void finish(const MatmulArgs &a, u32 r, u32 output, float sum) {
    float *out = a.out + (size_t)r * a.outputs + output;
    if (a.bias) sum += a.bias[output];
    *out = a.add ? *out + sum : sum;
}

// Sixteen bytes of a row, or zeros.
DEVICE uint4 load_or_zero(const bf16 *at, bool wanted) {
    uint4 zero;
    zero.x = zero.y = zero.z = zero.w = 0;
    return wanted ? *(const uint4 *)at : zero;
}

// TILES times eight rows.
template <u32 TILES> DEVICE void matmul_bf16(const MatmulArgs &a) {
    __shared__ float parts[WARPS][TILES][4][WARP];
    const u32 rows = *a.rows, g = lane() / 4, t = lane() % 4;
    if (!rows) return; // a step in which nothing drafts any more reads no weights
    const u32 steps = a.inputs / STEP, each = (steps + WARPS - 1) / WARPS;
    const u32 first = warp() * each, last = first + each < steps ? first + each : steps;
    for (u32 tile = blockIdx.x; tile * OUTPUTS < a.outputs; tile += gridDim.x) {
        const u32 output = tile * OUTPUTS + g;
        const bool upper = output < a.outputs, lower = output + 8 < a.outputs;
        const bf16 *w = (const bf16 *)a.w + (size_t)(upper ? output : 0) * a.inputs + t * 8;
        const bf16 *x = (const bf16 *)a.x + (size_t)g * a.inputs + t * 8;
        float c[TILES][4] = {};
#pragma unroll (4 / TILES)
        for (u32 step = first; step < last; step++) {
            const uint4 w0 = load_once(w + step * STEP);
            const uint4 w1 = load_once(w + (lower ? (size_t)8 * a.inputs : 0) + step * STEP);
            const u32 near[4] = {w0.x, w1.x, w0.y, w1.y}, far[4] = {w0.z, w1.z, w0.w, w1.w};
#pragma unroll
            for (u32 n = 0; n < TILES; n++) {
                const uint4 b = load_or_zero(x + (size_t)n * 8 * a.inputs + step * STEP, n * 8 + g < rows);
                multiply_add(c[n], near, b.x, b.y);
                multiply_add(c[n], far, b.z, b.w);
            }
        }
        for (u32 n = 0; n < TILES; n++) {
            for (u32 i = 0; i < 4; i++) parts[warp()][n][i][lane()] = c[n][i];
        }
        __syncthreads();
        // Element i of a thread's four: output g or g + 8, row 2 t or 2 t + 1.
        for (u32 place = threadIdx.x; place < TILES * 4 * WARP; place += blockDim.x) {
            const u32 n = place / (4 * WARP), i = place / WARP % 4, l = place % WARP;
            const u32 r = n * 8 + l % 4 * 2 + i % 2, at = tile * OUTPUTS + l / 4 + i / 2 * 8;
            float sum = 0.0f;
            for (u32 p = 0; p < WARPS; p++) sum += parts[p][n][i][l];
            if (r < rows && at < a.outputs) finish(a, r, at, sum);
        }
        __syncthreads(); // the parts have been read
    }
}
KERNEL(256, 64) matmul_8_bf16(MatmulArgs a) { matmul_bf16<1>(a); }
KERNEL(256, 80) matmul_16_bf16(MatmulArgs a) { matmul_bf16<2>(a); }

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
