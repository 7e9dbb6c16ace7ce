// compact_pass: which rows stay of a pass under way, asked between layers. A row leaves if its chunk is cancelled, or stands behind
// the chunk's live rows (prune.cu). One block: it reads each chunk's flag once, so that all see the same, lists the rows that stay for
// compact_rows, moves what is known of each row to its new place, and writes chunks, samples and numbers of rows anew.
struct CompactPassArgs {
    Chunk *chunks;
    const u32 *cancelled; // [chunk]: not 0 if nobody wants it any more; the host may write it at any time
    u32 *live; // [chunk]: rows that are wanted; 0 when it was cancelled
    u32 *positions, *chunk_of; // of each row, in place
    u32 *keep; // [rows]: where the rows that stay were
    Sample *samples; // of the rows that stay
    u32 *counts; // rows, the first that moves, samples
    u32 chunk_count;
};

static constexpr u32 THREADS = 1024;

KERNEL(1024, 56) compact_pass(CompactPassArgs a) {
    __shared__ u32 shared[32];
    __shared__ u32 moves;
    const u32 rows = a.counts[0];
    for (u32 c = threadIdx.x; c < a.chunk_count; c += THREADS) {
        const u32 live = a.cancelled[c] ? 0 : a.live[c];
        a.live[c] = live < a.chunks[c].rows ? live : a.chunks[c].rows;
    }
    if (threadIdx.x == 0) moves = NOTHING;
    __syncthreads();
    u32 kept = 0, sampled = 0;
    for (u32 start = 0; start < rows; start += THREADS) {
        const u32 r = start + threadIdx.x;
        const u32 c = r < rows ? a.chunk_of[r] : 0, position = r < rows ? a.positions[r] : 0;
        const Chunk chunk = a.chunks[c];
        const u32 offset = r - chunk.first;
        const bool stays = r < rows && offset < a.live[c], samples = stays && offset >= chunk.sampled_from;
        u32 staying, sampling;
        const u32 to = kept + block_rank(stays, shared, staying); // all have read their row: it may be overwritten
        const u32 sample = sampled + block_rank(samples, shared, sampling);
        if (stays) {
            a.keep[to] = r;
            a.positions[to] = position;
            a.chunk_of[to] = c;
            if (to != r) atomicMin(&moves, to);
        }
        if (samples) {
            Sample &out = a.samples[sample];
            out.row = to;
            out.chunk = c;
            out.position = position + 1;
            const int since = chunk.since + (int)(offset - chunk.sampled_from);
            out.since = since > 0 ? (u32)since : 0;
        }
        kept += staying;
        sampled += sampling;
    }
    __syncthreads(); // chunks have been read, `moves` is known
    if (threadIdx.x == 0) {
        // Chunks stand in the order of their rows.
        u32 first = 0;
        for (u32 c = 0; c < a.chunk_count; c++) {
            Chunk &chunk = a.chunks[c];
            chunk.first = first;
            chunk.rows = a.live[c];
            first += chunk.rows;
        }
        a.counts[0] = kept;
        a.counts[1] = moves < kept ? moves : kept;
        a.counts[2] = sampled;
    }
}
