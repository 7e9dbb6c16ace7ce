// experts: the products of a mixture of experts, each row with the matrix of the expert that it goes to. Which groups of rows there are, the device knows alone (route.cu): the grid is
// that of the bucket, and strides over the tiles of the groups, so each matrix that some row goes to is read from memory once, and no other. Where a group has more rows than a tile
// takes, its block goes on with them while the tile's weights are in the cache.
//
// experts_activate: gate and up to what the activation makes of them, of the rows of the pass that the groups name. experts: the projection back, of what stands by the
// groups' places already. A row's bits are those of matmul.cu with the matrix of its expert, whatever rows stand beside it.
struct ExpertsArgs {
    const void *x; // [..][inputs] of the type of w
    const void *w; // [experts][outputs][inputs], or the records of one expert after the other
    const float *bias; // [experts][outputs], or null
    void *out; // by places: f32 [..][outputs]; activated, of the type of w, [..][half of the outputs]
    const u32 *hit, *experts, *starts; // the groups: see route.cu
    const u32 *group_rows; // which row of `x` stands in a place; or null: it is that of the place
    u32 inputs, outputs, activation, form; // of w, where it is in records (records.cuh)
};

template <typename T> DEVICE const T *row_of(const ExpertsArgs &a, u32 place) { return (const T *)a.x + (size_t)(a.group_rows ? a.group_rows[place] : place) * a.inputs; }

template <typename T, bool GATED> DEVICE void keep(const ExpertsArgs &a, u32 expert, u32 place, u32 at, float sum, float opposite) {
    const float *bias = a.bias ? a.bias + (size_t)expert * a.outputs : nullptr;
    if (bias) sum += bias[at];
    if (GATED) {
        const u32 cols = a.outputs / 2;
        if (bias) opposite += bias[cols + at];
        ((T *)a.out)[(size_t)place * cols + at] = Of<T>::round(activation(a.activation, sum) * gated_by(a.activation, opposite));
    } else {
        ((float *)a.out)[(size_t)place * a.outputs + at] = sum;
    }
}

// The weights of an expert.
DEVICE void weights_of(const ExpertsArgs &a, u32 expert, const bf16 *&w) { w = (const bf16 *)a.w + (size_t)expert * a.outputs * a.inputs; }
template <typename Records> DEVICE void records_of(const ExpertsArgs &a, u32 expert, Records &w) {
    const u32 of_eight = (a.inputs / STEP + RECORD_STEPS - 1) / RECORD_STEPS;
    w.records = (const u32 *)a.w + (size_t)expert * (a.outputs / 8) * of_eight * w.words();
}
DEVICE void weights_of(const ExpertsArgs &a, u32 expert, FourBits &w) { w.form = a.form, records_of(a, expert, w); }
DEVICE void weights_of(const ExpertsArgs &a, u32 expert, Fp8 &w) { records_of(a, expert, w); }
DEVICE void weights_of(const ExpertsArgs &a, u32 expert, Int8 &w) { records_of(a, expert, w); }

template <u32 TILES, bool GATED, typename W = const bf16 *> DEVICE void experts_tiles(const ExpertsArgs &a) {
    __shared__ float parts[WARPS][TILES][4][WARP];
    constexpr u32 OWN = GATED ? OUTPUTS / 2 : OUTPUTS;
    const u32 all = GATED ? a.outputs / 2 : a.outputs, tiles = (all + OWN - 1) / OWN, items = *a.hit * tiles;
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        const u32 group = item / tiles, expert = a.experts[group], end = a.starts[group + 1];
        W w;
        weights_of(a, expert, w);
        for (u32 first = a.starts[group]; first < end; first += TILES * 8) {
            const u32 rows = end - first < TILES * 8 ? end - first : TILES * 8;
            const bf16 *x[TILES];
            for (u32 n = 0; n < TILES; n++) {
                const u32 r = n * 8 + lane() / 4;
                x[n] = r < rows ? row_of<bf16>(a, first + r) + lane() % 4 * 8 : nullptr;
            }
            const auto load = [&](u32 n, u32 step) { return load_or_zero(x[n] + step * STEP, x[n] != nullptr); };
            const auto write = [&](u32 r, u32 at, float sum, float opposite) { keep<bf16, GATED>(a, expert, first + r, at, sum, opposite); };
            sum_tile<TILES, GATED>(parts, w, a.inputs, all, item % tiles, rows, load, write);
        }
    }
}
KERNEL(256, 80, 3) experts_8(ExpertsArgs a) { experts_tiles<1, false>(a); }
KERNEL(256, 80, 3) experts_32(ExpertsArgs a) { experts_tiles<4, false>(a); }
KERNEL(256, 80, 3) experts_activate_8(ExpertsArgs a) { experts_tiles<1, true>(a); }
KERNEL(256, 80, 3) experts_activate_32(ExpertsArgs a) { experts_tiles<4, true>(a); }
KERNEL(256, 80, 3) experts_8_int4(ExpertsArgs a) { experts_tiles<1, false, FourBits>(a); }
KERNEL(256, 128, 2) experts_32_int4(ExpertsArgs a) { experts_tiles<4, false, FourBits>(a); }
KERNEL(256, 80, 3) experts_activate_8_int4(ExpertsArgs a) { experts_tiles<1, true, FourBits>(a); }
KERNEL(256, 128, 2) experts_activate_32_int4(ExpertsArgs a) { experts_tiles<4, true, FourBits>(a); }
KERNEL(256, 80, 3) experts_8_fp8(ExpertsArgs a) { experts_tiles<1, false, Fp8>(a); }
KERNEL(256, 128, 2) experts_32_fp8(ExpertsArgs a) { experts_tiles<4, false, Fp8>(a); }
KERNEL(256, 80, 3) experts_activate_8_fp8(ExpertsArgs a) { experts_tiles<1, true, Fp8>(a); }
KERNEL(256, 128, 2) experts_activate_32_fp8(ExpertsArgs a) { experts_tiles<4, true, Fp8>(a); }
KERNEL(256, 80, 3) experts_8_int8(ExpertsArgs a) { experts_tiles<1, false, Int8>(a); }
KERNEL(256, 128, 2) experts_32_int8(ExpertsArgs a) { experts_tiles<4, false, Int8>(a); }
KERNEL(256, 80, 3) experts_activate_8_int8(ExpertsArgs a) { experts_tiles<1, true, Int8>(a); }
KERNEL(256, 128, 2) experts_activate_32_int8(ExpertsArgs a) { experts_tiles<4, true, Int8>(a); }

// f32, and widths for which there are no tiles: a warp for an output of a group.
template <typename T, bool GATED> DEVICE void experts_plain(const ExpertsArgs &a) {
    const u32 all = GATED ? a.outputs / 2 : a.outputs, items = *a.hit * all, warps = gridDim.x * WARPS;
    for (u32 item = blockIdx.x * WARPS + warp(); item < items; item += warps) {
        const u32 group = item / all, at = item % all, expert = a.experts[group], end = a.starts[group + 1];
        const T *w = (const T *)a.w + ((size_t)expert * a.outputs + at) * a.inputs, *other = w + (size_t)all * a.inputs;
        for (u32 place = a.starts[group]; place < end; place++) {
            const T *x = row_of<T>(a, place);
            float sum = 0.0f, opposite = 0.0f;
            for (u32 i = lane(); i < a.inputs; i += WARP) {
                sum += widen(x[i]) * widen(w[i]);
                if (GATED) opposite += widen(x[i]) * widen(other[i]);
            }
            sum = warp_sum(sum);
            if (GATED) opposite = warp_sum(opposite);
            if (lane() == 0) keep<T, GATED>(a, expert, place, at, sum, opposite);
        }
    }
}
KERNEL(256, 48) experts_f32(ExpertsArgs a) { experts_plain<float, false>(a); }
KERNEL(256, 48) experts_bf16(ExpertsArgs a) { experts_plain<bf16, false>(a); }
KERNEL(256, 64) experts_activate_f32(ExpertsArgs a) { experts_plain<float, true>(a); }
KERNEL(256, 64) experts_activate_bf16(ExpertsArgs a) { experts_plain<bf16, true>(a); }
