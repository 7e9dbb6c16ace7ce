// sum_ranks: what the ranks of a group have is added up, or gathered, over memory that every GPU of the group may write: one kernel on each, launched by each for the same
// call. A block hands its part of what the rank has to all others, waits for theirs, and adds up in the order of the ranks: the same bits everywhere. Blocks of one number wait for each
// other alone. A slot is used in every other call: who comes to a call has ended the one before, for which all others have read the slots of the one before that.
// Who is told to wait no more has left for good: what the rank is asked for later brings nothing, so that nobody takes what never was a sum's part.
static constexpr u32 MOST_RANKS = 8, MOST_BLOCKS = 32;
// Of a rank's room: for each block the call that each rank has brought its part of, and the last that is over; whether the rank has left; then the slots.
static constexpr u32 OVER = MOST_RANKS * MOST_BLOCKS, LEFT = OVER + MOST_BLOCKS, SLOTS = (LEFT + MOST_BLOCKS) * 4;

struct SumRanksArgs {
    char *rooms[MOST_RANKS]; // of each rank, in its GPU's memory
    const float *own; // [len]
    float *out; // [len], which may be `own`; gathered: [ranks][len]
    const u32 *stop; // a word of the host's: not 0 where the group is over, and nobody is waited for
    u32 len, slot; // numbers, and those that a slot has room for
    u32 ranks, rank;
    u32 gathers;
    u32 halves; // both; tests, whose kernels run one after the other, have the second when all ranks had the first
};
static constexpr u32 BRINGS = 1, TAKES = 2;
// Looks at what the others have brought between two at `stop`, which is behind a slow way.
static constexpr u32 PATIENCE = 1024;

// Of a rank that is not known when this is compiled: no array of pointers in local memory.
DEVICE char *room(const SumRanksArgs &a, u32 rank) {
    char *found = a.rooms[0];
#pragma unroll
    for (u32 r = 1; r < MOST_RANKS; r++) found = r == rank ? a.rooms[r] : found;
    return found;
}
DEVICE u32 *brought(const SumRanksArgs &a, u32 to, u32 block) { return (u32 *)room(a, to) + block * MOST_RANKS; }
DEVICE u32 *calls(const SumRanksArgs &a, u32 block) { return (u32 *)room(a, a.rank) + OVER + block; }
DEVICE u32 *left(const SumRanksArgs &a) { return (u32 *)room(a, a.rank) + LEFT; }
DEVICE float *slot(const SumRanksArgs &a, u32 to, u32 from, u32 block, u32 call) {
    return (float *)(room(a, to) + SLOTS) + ((size_t)(block * 2 + call % 2) * a.ranks + from) * a.slot;
}
DEVICE bool has_come(const SumRanksArgs &a, u32 rank, u32 block, u32 call) {
    return rank == a.rank || (int)(told(brought(a, a.rank, block) + rank) - call) >= 0;
}

DEVICE float4 floats_of(const uint4 &x) { return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)}; }
DEVICE void add_to(float4 &sum, const float4 &x) {
    sum.x = __fadd_rn(sum.x, x.x), sum.y = __fadd_rn(sum.y, x.y), sum.z = __fadd_rn(sum.z, x.z), sum.w = __fadd_rn(sum.w, x.w);
}

// Four numbers of each rank, or one where they do not come in fours. A slot has them as they are in `own`.
template <bool FOURS> DEVICE float4 brought_by(const float *own, const float *slot, bool self) {
    if (FOURS) return self ? load_four(own) : floats_of(load_told(slot));
    return {self ? *own : __uint_as_float(load_told_word(slot)), 0.0f, 0.0f, 0.0f};
}
template <bool FOURS> DEVICE void put(float *to, const float4 &x) {
    if (FOURS) store_four(to, x);
    else *to = x.x;
}
template <bool FOURS> DEVICE void take(const SumRanksArgs &a, const float *slots, u32 first, u32 count) {
    constexpr u32 STEP = FOURS ? 4 : 1;
    for (u32 i = threadIdx.x * STEP; i < count; i += blockDim.x * STEP) {
        const float *own = a.own + first + i;
        float *out = a.out + first + i;
        float4 of[MOST_RANKS];
#pragma unroll
        for (u32 r = 0; r < MOST_RANKS; r++) {
            if (r < a.ranks) of[r] = brought_by<FOURS>(own, slots + (size_t)r * a.slot + i, r == a.rank);
        }
        float4 sum = of[0];
#pragma unroll
        for (u32 r = 0; r < MOST_RANKS; r++) {
            if (r >= a.ranks) continue;
            if (a.gathers) put<FOURS>(out + (size_t)r * a.len, of[r]);
            else if (r > 0) add_to(sum, of[r]);
        }
        if (!a.gathers) put<FOURS>(out, sum);
    }
}

KERNEL(256, 80) sum_ranks(SumRanksArgs a) {
    // Another block may be leaving: all threads go on, or none.
    if (__syncthreads_or(*left(a))) return;
    const u32 block = blockIdx.x, call = *calls(a, block) + 1;
    const u32 part = ((a.len + gridDim.x - 1) / gridDim.x + 3) / 4 * 4;
    const u32 first = block * part < a.len ? block * part : a.len, count = a.len - first < part ? a.len - first : part;
    const bool fours = in_fours(a.own, a.len) && in_fours(a.out, 0);
    const u32 step = fours ? 4 : 1;
    if (a.halves & BRINGS) {
        // Everyone begins with another, so that no link has all of them.
        for (u32 i = 1; i < a.ranks; i++) {
            const u32 to = (a.rank + i) % a.ranks;
            float *there = slot(a, to, a.rank, block, call);
            for (u32 j = threadIdx.x * step; j < count; j += blockDim.x * step) {
                if (fours) store_four(there + j, load_four(a.own + first + j));
                else there[j] = a.own[first + j];
            }
        }
        __syncthreads(); // all of the block's part is written before anyone is told
        if (threadIdx.x < a.ranks && threadIdx.x != a.rank) tell_peer(brought(a, threadIdx.x, block) + a.rank, call);
    }
    if (!(a.halves & TAKES)) return;
    bool come = true;
    if (threadIdx.x < a.ranks) {
        for (u32 looks = 1; !has_come(a, threadIdx.x, block, call); looks++) {
            if (looks % PATIENCE == 0 && told(a.stop)) {
                come = false;
                break;
            }
        }
    }
    // All ranks have brought theirs.
    if (!__syncthreads_and(come)) {
        if (threadIdx.x == 0) *left(a) = 1;
        return;
    }
    const float *slots = slot(a, a.rank, 0, block, call);
    if (fours) take<true>(a, slots, first, count);
    else take<false>(a, slots, first, count);
    __syncthreads(); // all have read the call's number
    if (threadIdx.x == 0) *calls(a, block) = call;
}
