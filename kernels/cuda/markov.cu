// markov: what the rows of a block take from the token drawn before each, row by row, between two products. mix_gates: a gated row reads its token's
// embedding through a gate; one of a recurrence, where there is a state, reads the output and moves the state on. surety: how sure the head is of a row,
// 0 to 1, a warp for a row. note_drawn: tokens take the places of their proposals.
struct GatesArgs {
    const float *gates; // [rows][rank], or with a state [rows][3 * rank]: how much stays, what comes, what is read
    const float *embedded; // [rows][rank]
    float *state; // [rows][rank], or none
    void *out; // [rows][rank]
    const u32 *rows;
    u32 rank;
};
struct SuretyArgs {
    const void *hidden; // [rows][cols]
    const float *before; // [rows][rank]
    const float *weights, *bias; // [cols + rank], [1]
    float *out;
    const u32 *rows;
    u32 cols, rank;
};
struct NoteDrawnArgs {
    const u32 *tokens;
    const Sample *samples;
    u32 *proposals; // [chunks][stride]
    const u32 *rows;
    u32 stride;
};

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

template <typename T> DEVICE void mix_gates(const GatesArgs &a) {
    const u32 rows = *a.rows, wide = a.state ? 3 * a.rank : a.rank;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const float *gates = a.gates + (size_t)r * wide;
        for (u32 i = threadIdx.x; i < a.rank; i += blockDim.x) {
            const size_t at = (size_t)r * a.rank + i;
            const float gate = sigmoid(gates[i]);
            float read = 0.0f;
            if (a.state) {
                a.state[at] = gate * a.state[at] + (1.0f - gate) * tanh_of(gates[a.rank + i]);
                read = tanh_of(gates[2 * a.rank + i]);
            } else {
                read = gate * a.embedded[at];
            }
            ((T *)a.out)[at] = Of<T>::round(read);
        }
    }
}
KERNEL(256, 32) mix_gates_f32(GatesArgs a) { mix_gates<float>(a); }
KERNEL(256, 32) mix_gates_bf16(GatesArgs a) { mix_gates<bf16>(a); }

template <typename T> DEVICE void surety(const SuretyArgs &a) {
    const u32 rows = *a.rows, warps = gridDim.x * (blockDim.x / WARP);
    for (u32 r = blockIdx.x * (blockDim.x / WARP) + warp(); r < rows; r += warps) {
        const T *hidden = (const T *)a.hidden + (size_t)r * a.cols;
        float sum = 0.0f;
        for (u32 i = lane(); i < a.cols; i += WARP) sum += widen(hidden[i]) * a.weights[i];
        for (u32 i = lane(); i < a.rank; i += WARP) sum += a.before[(size_t)r * a.rank + i] * a.weights[a.cols + i];
        sum = warp_sum(sum);
        if (lane() == 0) a.out[r] = sigmoid(sum + *a.bias);
    }
}
KERNEL(128, 40) surety_f32(SuretyArgs a) { surety<float>(a); }
KERNEL(128, 40) surety_bf16(SuretyArgs a) { surety<bf16>(a); }

KERNEL(256, 32) note_drawn(NoteDrawnArgs a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x * blockDim.x + threadIdx.x; r < rows; r += gridDim.x * blockDim.x) {
        const Sample sample = a.samples[r];
        // Nothing stands behind the last one.
        if (sample.since < a.stride) a.proposals[(size_t)sample.chunk * a.stride + sample.since] = a.tokens[r];
    }
}
