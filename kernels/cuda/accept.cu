// accept: what a verify pass answers for each chunk: how many proposals equal the target's own tokens, one after the other, and the
// token after them. One thread for a chunk.
//
// Of a chunk that lost rows at its end, the last row that ran gives the next token, whether or not it equals its proposal: only
// rows that ran all layers count.
struct Verdict { u32 accepted, next, rows, unused; };
struct AcceptArgs {
    const Chunk *chunks;
    const u32 *tokens; // [samples]
    const u32 *proposals; // [chunk][proposal_stride]
    const u32 *proposal_counts; // [chunk]
    Verdict *verdicts; // [chunk]: next is NOTHING if no row gave a token
    u32 chunk_count, proposal_stride;
};

KERNEL(128) accept_prefix(AcceptArgs a) {
    const u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= a.chunk_count) return;
    const Chunk chunk = a.chunks[c];
    const u32 samples = chunk.rows > chunk.sampled_from ? chunk.rows - chunk.sampled_from : 0;
    Verdict verdict;
    verdict.accepted = 0;
    verdict.next = NOTHING;
    verdict.rows = chunk.rows;
    verdict.unused = 0;
    if (samples) {
        const u32 *tokens = a.tokens + chunk.first_sample, *proposals = a.proposals + (size_t)c * a.proposal_stride;
        const u32 most = a.proposal_counts[c] < samples - 1 ? a.proposal_counts[c] : samples - 1;
        while (verdict.accepted < most && tokens[verdict.accepted] == proposals[verdict.accepted]) verdict.accepted++;
        verdict.next = tokens[verdict.accepted];
    }
    a.verdicts[c] = verdict;
}
