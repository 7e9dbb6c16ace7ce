// score_tokens: the dot products of each row of `x` with a few outputs of a matrix [outputs][inputs]: the LM head's logits of a few
// tokens. A warp for each; a token beyond the vocabulary scores -infinity, one that is not among those whose outputs are here 0: of a group,
// another rank has it.
struct ScoreTokensArgs {
    const void *x; // [rows][inputs] of the type of w
    const void *w;
    const u32 *tokens; // [rows][each]
    float *out; // [rows][each]
    const u32 *rows;
    u32 inputs, outputs, each;
    u32 first, vocabulary; // the token of the first output, and all there are
    float soft_cap; // 0: none
};

template <typename T> DEVICE void score_tokens(const ScoreTokensArgs &a) {
    const u32 items = *a.rows * a.each, warps = gridDim.x * (blockDim.x / WARP);
    for (u32 item = blockIdx.x * (blockDim.x / WARP) + warp(); item < items; item += warps) {
        const u32 token = a.tokens[item];
        const bool known = token < a.vocabulary, here = known && token - a.first < a.outputs;
        const T *x = (const T *)a.x + (size_t)(item / a.each) * a.inputs;
        const T *w = (const T *)a.w + (size_t)(here ? token - a.first : 0) * a.inputs;
        float sum = 0.0f;
        for (u32 i = lane(); i < a.inputs; i += WARP) sum += widen(x[i]) * widen(w[i]);
        sum = warp_sum(sum);
        if (lane() == 0) a.out[item] = here ? (a.soft_cap != 0.0f ? capped(sum, a.soft_cap) : sum) : known ? 0.0f : -infinity();
    }
}
KERNEL(256, 48) score_tokens_f32(ScoreTokensArgs a) { score_tokens<float>(a); }
KERNEL(256, 48) score_tokens_bf16(ScoreTokensArgs a) { score_tokens<bf16>(a); }
