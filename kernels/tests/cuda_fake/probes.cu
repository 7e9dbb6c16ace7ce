// Kernels with planted mistakes, to see that the fibers find them.
struct ProbeArgs { const u32 *in; u32 *out; u32 count; };

// Reverses a block through shared memory without the barrier between.
KERNEL(64, 32) barrier_missing(ProbeArgs a) {
    __shared__ u32 shared[64];
    shared[threadIdx.x] = a.in[threadIdx.x];
    if (a.count) __syncthreads();
    a.out[threadIdx.x] = shared[63 - threadIdx.x];
    __syncthreads();
}
// Copies in the background and does not wait.
KERNEL(32, 32) wait_missing(ProbeArgs a) {
    DYNAMIC_SHARED(bytes);
    copy_async(bytes + 16 * threadIdx.x, a.in + 4 * threadIdx.x, true);
    copy_commit();
    if (a.count) copy_wait<0>();
    for (u32 i = 0; i < 4; i++) a.out[4 * threadIdx.x + i] = ((u32 *)bytes)[4 * threadIdx.x + i];
}
