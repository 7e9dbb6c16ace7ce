// embed: row r of `out` becomes the table's row of token r, in f32, times `scale`. A token beyond the vocabulary gives NaN, never another's row; one that is
// not among those whose rows are here gives zeros: of a group, another rank has it.
struct EmbedArgs {
    const void *table;
    const u32 *tokens;
    float *out;
    const u32 *rows;
    u32 cols, vocabulary;
    u32 first, held; // tokens whose rows are here
    float scale;
};

template <typename T> DEVICE void embed(const EmbedArgs &a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const u32 token = a.tokens[r];
        const bool known = token < a.vocabulary, here = token - a.first < a.held;
        const T *from = (const T *)a.table + (size_t)(here ? token - a.first : 0) * a.cols;
        const float otherwise = known ? 0.0f : infinity() - infinity();
        float *to = a.out + (size_t)r * a.cols;
        if (known && here && in_fours(a.out, a.cols) && in_fours(a.table, 0)) {
            change_fours(to, from, a.cols, [&](float4 x) {
                x.x *= a.scale, x.y *= a.scale, x.z *= a.scale, x.w *= a.scale;
                return x;
            });
            continue;
        }
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) to[i] = known && here ? widen(from[i]) * a.scale : otherwise;
    }
}
KERNEL(256, 40) embed_f32(EmbedArgs a) { embed<float>(a); }
KERNEL(256, 40) embed_bf16(EmbedArgs a) { embed<bf16>(a); }
