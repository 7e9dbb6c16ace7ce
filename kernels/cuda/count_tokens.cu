// count_tokens: adds committed tokens to a sequence's table of counts, a word for each token of the vocabulary: the top bit says that the
// prompt has it, the rest how often the output has. Only sequences with penalties have a table. `remove` takes tokens of the output
// out again.
struct CountArgs {
    const u32 *tokens;
    u32 *counts; // [vocabulary]
    u32 len, first_position, prompt_len, vocabulary, remove;
};

KERNEL(256, 32) count_tokens(CountArgs a) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.len; i += gridDim.x * blockDim.x) {
        const u32 token = a.tokens[i];
        if (token >= a.vocabulary) continue;
        if (a.first_position + i >= a.prompt_len) atomicAdd(&a.counts[token], a.remove ? ~0u : 1u);
        else if (!a.remove) atomicOr(&a.counts[token], 0x80000000u);
    }
}
