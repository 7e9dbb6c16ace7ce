// merge_splits: what the splits of attention found for a head of a row, brought to one largest score and added, from the first
// split to the last; one warp for each. Rows that lie in one split alone are finished already.
struct MergeSplitsArgs {
    const float *sums; // [row][head][split][head_dim]
    const float2 *stats; // [row][head][split]
    const u32 *positions;
    const float *sinks; // [heads], or null
    void *out; // [rows][heads * head_dim]
    const u32 *rows;
    u32 heads, head_dim, window, first, split, splits;
};

template <typename T> DEVICE void merge_splits(const MergeSplitsArgs &a) {
    const u32 items = *a.rows * a.heads, warps = gridDim.x * (blockDim.x / WARP);
    for (u32 item = blockIdx.x * (blockDim.x / WARP) + warp(); item < items; item += warps) {
        const u32 end = a.positions[item / a.heads] + 1, begin = first_seen(end, a.window, a.first);
        const u32 first = begin / a.split, last = (end - 1) / a.split;
        if (first == last) continue;
        const float2 *stats = a.stats + (size_t)item * a.splits;
        float largest = -infinity(), total = 0.0f;
        for (u32 s = first; s <= last; s++) largest = fmaxf(largest, stats[s].x);
        for (u32 s = first; s <= last; s++) total += stats[s].y * exp_of(stats[s].x - largest);
        if (a.sinks) total += exp_of(a.sinks[item % a.heads] - largest);
        for (u32 i = lane(); i < a.head_dim; i += WARP) {
            float sum = 0.0f;
            for (u32 s = first; s <= last; s++) {
                sum += a.sums[((size_t)item * a.splits + s) * a.head_dim + i] * exp_of(stats[s].x - largest);
            }
            ((T *)a.out)[(size_t)item * a.head_dim + i] = Of<T>::round(sum / total);
        }
    }
}
KERNEL(128, 48) merge_splits_f32(MergeSplitsArgs a) { merge_splits<float>(a); }
KERNEL(128, 48) merge_splits_bf16(MergeSplitsArgs a) { merge_splits<bf16>(a); }
