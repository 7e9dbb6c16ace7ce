// spread_logits: logits of some of the vocabulary's tokens become those of all: the others are -infinity.
struct SpreadLogitsArgs {
    const float *own; // [rows][held]
    const u32 *places; // [vocabulary]: which of the own ones a token's is, or NOTHING
    float *out; // [rows][vocabulary]
    const u32 *rows;
    u32 held, vocabulary;
};

KERNEL(256, 32) spread_logits(SpreadLogitsArgs a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.y; r < rows; r += gridDim.y) {
        for (u32 v = blockIdx.x * blockDim.x + threadIdx.x; v < a.vocabulary; v += gridDim.x * blockDim.x) {
            const u32 place = a.places[v];
            a.out[(size_t)r * a.vocabulary + v] = place == NOTHING ? -infinity() : a.own[(size_t)r * a.held + place];
        }
    }
}
