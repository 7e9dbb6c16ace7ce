// draft_step: what stands between two steps of drafting, so that no host has to: the tokens just drawn become proposals of their
// chunks, each chunk's stop rule is applied, then that of all together, and the chunks that go on have a row each in the next pass. One
// block; a thread for a sample, then for a chunk.
//
// It writes the whole next pass (rows, chunks, samples, tiles of attention, numbers of rows), whose arrays may be those of the pass that
// was drawn: all of those are read first. A chunk's cancellation is read once; a chunk that stopped never goes on again, for nothing of
// it changes and flags stay set.
struct DraftState {
    u32 base; // position of the first proposal
    u32 steps; // proposals at most
    u32 count; // proposals so far
    u32 alive; // whether it was not yet cancelled, nor all drafting ended
    float survival; // of the last proposal
    float below; // no proposal follows one of a survival below
    float next; // what one that follows is worth, if all before it survive
    float each, step_cost; // what it costs, and what a step of all chunks costs; the latter is the same for all, 0: steps are free
    float acceptance[16]; // by confidence
};
struct Tile { u32 chunk, first_query; };
struct DraftStepArgs {
    // What was drawn.
    const Sample *samples;
    const u32 *tokens; // per sample
    const float *confidence; // per sample
    const u32 *top; // [samples][TOP], or null
    const u32 *next; // [samples][CANDIDATES], or null
    const u32 *sample_count;
    const u32 *of_plan; // [chunk of that pass]: chunk here; null: the same
    // The chunks of the plan.
    DraftState *states;
    const u32 *cancelled; // [chunk]: the host may write it at any time
    u32 *proposals; // [chunk][STEPS]
    float *confidences; // [chunk][STEPS]
    u32 *alternatives; // [chunk][STEPS][TOP]
    u32 *candidates; // [chunk][STEPS][CANDIDATES]
    u32 *proposal_counts; // [chunk]
    // The next pass; null `chunks`: none yet, more is to be drawn first.
    Chunk *chunks;
    u32 *row_tokens, *positions, *chunk_of;
    Sample *next_samples;
    Tile *tiles; // tiles_each for a row, in the host's order; then padding
    u32 *counts; // rows, rows, samples
    u32 *step; // steps so far, and one more after this
    u32 *going; // [step]: rows of the pass behind it and 1 more, in the host's memory
    u32 chunk_count, tiles_each, tile_queries;
};

static constexpr u32 THREADS = 1024, STEPS = 16, TOP = 8, CANDIDATES = 8, BINS = 16;

DEVICE void record(const DraftStepArgs &a, u32 i) {
    const u32 chunk = a.samples[i].chunk, c = a.of_plan ? a.of_plan[chunk] : chunk, token = a.tokens[i];
    const float confidence = a.confidence[i];
    DraftState &state = a.states[c];
    const u32 place = c * STEPS + state.count;
    a.proposals[place] = token;
    a.confidences[place] = confidence;
    if (a.top) {
#pragma unroll 1 // else all places are held at once
        for (u32 t = 0; t < TOP; t++) a.alternatives[place * TOP + t] = a.top[i * TOP + t];
    }
    if (a.next) {
#pragma unroll 1
        for (u32 t = 0; t < CANDIDATES; t++) a.candidates[place * CANDIDATES + t] = a.next[i * CANDIDATES + t];
    }
    // As the engine's: out of range and NaN go to the nearest end.
    const float scaled = confidence * (float)BINS;
    const u32 bin = scaled >= (float)BINS ? BINS - 1 : scaled > 0.0f ? (u32)scaled : 0;
    state.survival = __fmul_rn(state.survival, state.acceptance[bin]);
    state.count++;
    a.proposal_counts[c] = state.count;
}

DEVICE bool goes_on(const DraftState &state) {
    return state.alive && state.count > 0 && state.count < state.steps && state.survival >= state.below;
}

KERNEL(1024, 48) draft_step(DraftStepArgs a) {
    __shared__ u32 shared[32];
    __shared__ float sums[32];
    const u32 drawn = *a.sample_count;
    for (u32 i = threadIdx.x; i < drawn; i += THREADS) record(a, i);
    if (!a.chunks) return;
    __syncthreads(); // states are written, samples read
    float gain = 0.0f;
    for (u32 c = threadIdx.x; c < a.chunk_count; c += THREADS) {
        DraftState &state = a.states[c];
        if (a.cancelled[c]) state.alive = 0;
        if (goes_on(state)) gain += state.survival * state.next - state.each;
    }
    gain = block_sum(gain, sums);
    const float step_cost = a.states[0].step_cost;
    const bool pays = step_cost == 0.0f || gain > step_cost;
    u32 rows = 0;
    for (u32 start = 0; start < a.chunk_count; start += THREADS) {
        const u32 c = start + threadIdx.x;
        bool on = false;
        u32 count = 0;
        if (c < a.chunk_count) {
            DraftState &state = a.states[c];
            count = state.count;
            on = pays && goes_on(state);
            if (!pays) state.alive = 0; // for good: steps may have been asked for already
        }
        u32 going;
        const u32 to = rows + block_rank(on, shared, going);
        if (c < a.chunk_count) {
            Chunk chunk;
            chunk.first = to;
            chunk.since = 0;
            chunk.rows = on ? 1 : 0;
            chunk.sampled_from = on ? 0 : NOTHING;
            a.chunks[c] = chunk;
        }
        if (on) {
            const u32 position = a.states[c].base + count - 1;
            a.row_tokens[to] = a.proposals[c * STEPS + count - 1];
            a.positions[to] = position;
            a.chunk_of[to] = c;
            Sample sample;
            sample.row = to;
            sample.chunk = c;
            sample.position = position + 1;
            sample.since = count;
            a.next_samples[to] = sample;
            for (u32 t = 0; t < a.tiles_each; t++) {
                Tile tile;
                tile.chunk = c;
                tile.first_query = t * a.tile_queries;
                a.tiles[to * a.tiles_each + t] = tile;
            }
        }
        rows += going;
    }
    for (u32 i = rows * a.tiles_each + threadIdx.x; i < a.chunk_count * a.tiles_each; i += THREADS) a.tiles[i].chunk = NOTHING;
    if (threadIdx.x == 0) {
        a.counts[0] = a.counts[1] = a.counts[2] = rows;
        const u32 step = *a.step;
        *a.step = step + 1;
        if (step <= STEPS) tell_host(a.going + step, rows + 1);
    }
}
