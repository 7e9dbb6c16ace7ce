// route: which rows of a pass go to which experts, in f32 whatever experts are held in, for rounding may turn the choice.
//
// router: the logits of the experts, of the rows of the residual stream as normalised, a warp for an output of a few rows; a row's are the same whatever rows stand beside it.
// route: of each row the experts of its largest logits, ascending, and by what each is weighed; of equals the first, as on the CPU (kernels/src/ops/route.rs). Then the last block
// brings the rows to their experts: experts in their order, and in each the rows in theirs, so that nothing depends on which thread comes first, and no host has to know.
struct RouterArgs {
    const float *x; // [rows][hidden]: the residual stream
    const float *norm; // [hidden]
    const float *w; // [outputs][hidden]
    const float *bias; // [outputs], or null
    float *logits; // [rows][outputs]
    const u32 *rows;
    u32 hidden, outputs;
    float eps;
};

static constexpr u32 ROWS = 4; // of a warp

KERNEL(256, 64) router(RouterArgs a) {
    const u32 rows = *a.rows, items = (rows + ROWS - 1) / ROWS * a.outputs, warps = gridDim.x * WARPS;
    for (u32 item = blockIdx.x * WARPS + warp(); item < items; item += warps) {
        const u32 first = item / a.outputs * ROWS, output = item % a.outputs;
        const float *w = a.w + (size_t)output * a.hidden, *x = a.x + (size_t)first * a.hidden;
        float squares[ROWS] = {}, sums[ROWS] = {};
        const auto add = [&](u32 r, float value, float weight) {
            squares[r] = __fmaf_rn(value, value, squares[r]);
            sums[r] = __fmaf_rn(value, weight, sums[r]);
        };
        if (a.hidden % 4 == 0) {
#pragma unroll 4
            for (u32 i = lane() * 4; i < a.hidden; i += WARP * 4) {
                const float4 norm = load_four(a.norm + i), of = load_four(w + i);
                float4 values[ROWS];
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) values[r] = load_four(x + (first + r < rows ? (size_t)r * a.hidden : 0) + i);
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
                    add(r, values[r].x, norm.x * of.x), add(r, values[r].y, norm.y * of.y);
                    add(r, values[r].z, norm.z * of.z), add(r, values[r].w, norm.w * of.w);
                }
            }
        } else {
            for (u32 i = lane(); i < a.hidden; i += WARP) {
                for (u32 r = 0; r < ROWS; r++) add(r, first + r < rows ? x[(size_t)r * a.hidden + i] : 0.0f, a.norm[i] * w[i]);
            }
        }
        for (u32 r = 0; r < ROWS; r++) {
            const float inverse = 1.0f / sqrtf(warp_sum(squares[r]) / (float)a.hidden + a.eps), sum = warp_sum(sums[r]) * inverse;
            if (lane() == 0 && first + r < rows) a.logits[(size_t)(first + r) * a.outputs + output] = a.bias ? sum + a.bias[output] : sum;
        }
    }
}

struct RouteArgs {
    const float *logits; // [rows][stride]: the first `count`
    u32 *chosen; // [rows][active]
    float *weights; // [rows][active]
    u32 *places; // [rows][active]: where each stands among the rows of all groups
    u32 *group_rows; // [rows][active]: the row of each such place
    u32 *hit; // how many groups there are, one for each expert that some row goes to
    u32 *experts; // [count]: of each group
    u32 *starts; // [count + 1]: where its rows begin, and where the last one's end
    const u32 *rows;
    u32 *tickets;
    u32 count, stride, active, renormed;
};

static constexpr u32 MOST_EXPERTS = 1024, HELD = 4; // logits that a lane keeps, of the first 128
static constexpr u32 MOST_HELD = 4096; // choices of a pass that stand in shared memory

// The experts of one row, at most 32 of them, by a warp.
DEVICE void choose(const RouteArgs &a, u32 r) {
    const float *logits = a.logits + (size_t)r * a.stride;
    // What is no number is the last to be chosen; the sum makes one of both zeros.
    const auto key = [&](u32 e) { return key_of(logits[e] == logits[e] ? logits[e] + 0.0f : -infinity(), e); };
    u64 last = ~0ull, held[HELD];
#pragma unroll
    for (u32 j = 0; j < HELD; j++) held[j] = lane() + j * WARP < a.count ? key(lane() + j * WARP) : 0;
    u32 own = NOTHING; // of lane k the expert that is chosen k-th
    for (u32 k = 0; k < a.active; k++) {
        u64 best = 0;
#pragma unroll
        for (u32 j = 0; j < HELD; j++) best = held[j] < last && held[j] > best ? held[j] : best;
        for (u32 e = lane() + HELD * WARP; e < a.count; e += WARP) {
            const u64 other = key(e);
            if (other < last && other > best) best = other;
        }
        last = warp_max(best);
        if (lane() == k) own = token_of(last);
    }
    const bool mine = lane() < a.active;
    const float most = logits[__shfl_sync(~0u, own, 0)], weight = mine ? exp_or_none(logits[own] - most) : 0.0f;
    float all = 0.0f;
    if (!a.renormed) for (u32 e = lane(); e < a.count; e += WARP) all += exp_or_none(logits[e] - most);
    const float total = warp_sum(a.renormed ? weight : all);
    u32 rank = 0;
    for (u32 k = 0; k < a.active; k++) rank += __shfl_sync(~0u, own, (int)k) < own;
    if (!mine) return;
    a.chosen[(size_t)r * a.active + rank] = own;
    a.weights[(size_t)r * a.active + rank] = weight / total;
}

KERNEL(1024, 64, 1) route(RouteArgs a) {
    __shared__ u32 counts[MOST_EXPERTS];
    __shared__ u16 near[MOST_HELD];
    const u32 rows = *a.rows, pairs = rows * a.active, warps = blockDim.x / WARP;
    for (u32 r = blockIdx.x * warps + warp(); r < rows; r += gridDim.x * warps) choose(a, r);
    if (!is_last(a.tickets, gridDim.x)) return;
    // Each expert's warp looks at all of them, twice.
    for (u32 pair = threadIdx.x; pair < pairs && pair < MOST_HELD; pair += blockDim.x) near[pair] = (u16)a.chosen[pair];
    __syncthreads();
    const auto chosen = [&](u32 pair) { return pair < MOST_HELD ? near[pair] : a.chosen[pair]; };
    for (u32 e = warp(); e < a.count; e += warps) {
        u32 found = 0;
        for (u32 pair = lane(); pair - lane() < pairs; pair += WARP) found += __popc(__ballot_sync(~0u, pair < pairs && chosen(pair) == e));
        if (lane() == 0) counts[e] = found;
    }
    __syncthreads();
    for (u32 e = warp(); e < a.count; e += warps) {
        u32 place = 0, group = 0;
        for (u32 other = lane(); other < e; other += WARP) {
            place += counts[other];
            group += counts[other] > 0;
        }
        place = warp_sum(place);
        group = warp_sum(group);
        const bool some = counts[e] > 0;
        if (lane() == 0 && some) {
            a.experts[group] = e;
            a.starts[group] = place;
        }
        if (lane() == 0 && e == a.count - 1) {
            *a.hit = group + some;
            a.starts[group + some] = pairs;
        }
        for (u32 pair = lane(); some && pair - lane() < pairs; pair += WARP) {
            const bool goes = pair < pairs && chosen(pair) == e;
            const u32 votes = __ballot_sync(~0u, goes), at = place + __popc(votes & ((1u << lane()) - 1));
            if (goes) {
                a.places[pair] = at;
                a.group_rows[at] = pair / a.active;
            }
            place += __popc(votes);
        }
    }
}
