// store_states: the residual stream of a pass, to the places that its rows have in a ring of hidden states. Rows may have left the pass: only the last
// ones of a chunk, so a row's place follows from that of its chunk's first row.
struct StoreStatesArgs {
    const float *x;
    const u32 *chunk_of; // of each row
    const Chunk *chunks;
    const u32 *slots; // [chunk]: of its first row
    float *states; // [capacity][width]
    const u32 *rows;
    u32 cols, width;
    u32 first; // column of a slot where x goes
    u32 capacity;
};

KERNEL(256, 32) store_states(StoreStatesArgs a) {
    const u32 rows = *a.rows;
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x) {
        const u32 c = a.chunk_of[r], slot = (a.slots[c] + (r - a.chunks[c].first)) % a.capacity;
        float *to = a.states + (size_t)slot * a.width + a.first;
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) to[i] = a.x[(size_t)r * a.cols + i];
    }
}
