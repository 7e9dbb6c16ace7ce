// Kernels of `faser gpu-check` alone: where launches run, how fast memory is, noise, and what flags of the host and illegal writes do.
struct SmsArgs { u32 *seen; u32 sms, turns; };
struct CopyArgs { const uint4 *from; uint4 *to; u64 count; };
struct ReadArgs { const uint4 *from; u32 *sum; u64 count; };
struct FillArgs { void *to; u64 count, seed; float scale; u32 kind; };
struct NoiseArgs { u32 *out; u32 count, position; u64 seed; };
struct WaitArgs { const u32 *flag; u32 *looks; u32 most; };
struct IllegalWriteArgs { u32 *at; };

// Counts its blocks by the SM they run on; behind the SMs those that cannot say. Long enough for all SMs to get some.
KERNEL(32, 32) check_sms(SmsArgs a) {
    float x = (float)threadIdx.x;
    for (u32 i = 0; i < a.turns; i++) x = __fmaf_rn(x, 0.99f, 1.0f);
    const u32 sm = this_sm();
    if (threadIdx.x == 0 && finite(x)) atomicAdd(a.seen + (sm < a.sms ? sm : a.sms), 1u);
}
// Four words of 16 bytes under way for each thread.
KERNEL(512, 64) check_copy(CopyArgs a) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < a.count; i += 4 * stride) {
        uint4 x[4];
        for (u32 j = 0; j < 4; j++) x[j] = load_once(a.from + i + j * stride);
        for (u32 j = 0; j < 4; j++) a.to[i + j * stride] = x[j];
    }
    for (; i < a.count; i += stride) a.to[i] = load_once(a.from + i);
}
// Adds up all words of 4 bytes.
KERNEL(512, 64) check_read(ReadArgs a) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (; i + 3 * stride < a.count; i += 4 * stride) {
        uint4 x[4];
        for (u32 j = 0; j < 4; j++) x[j] = load_once(a.from + i + j * stride);
        for (u32 j = 0; j < 4; j++) sum += x[j].x + x[j].y + x[j].z + x[j].w;
    }
    for (; i < a.count; i += stride) {
        const uint4 x = load_once(a.from + i);
        sum += x.x + x.y + x.z + x.w;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane() == 0) atomicAdd(a.sum, sum);
}
// Numbers between -scale and scale; or words of which no part is large, infinite or no number.
KERNEL(256, 40) check_fill(FillArgs a) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += stride) {
        const u64 bits = mix(a.seed + i);
        const float x = (__int2float_rn((int)(bits >> 40)) * (1.0f / 8388608.0f) - 1.0f) * a.scale;
        if (a.kind == 2) ((u32 *)a.to)[i] = (u32)(bits >> 32) & 0x37373737u;
        else if (a.kind == 1) ((u16 *)a.to)[i] = round_bf16(x);
        else ((float *)a.to)[i] = x;
    }
}
KERNEL(32, 40) check_noise(NoiseArgs a) {
    for (u32 i = threadIdx.x; i < a.count; i += 32) a.out[i] = __float_as_uint(noise(noise_keys(a.seed, a.position), i));
}
// Looks at a flag until it is set, or often enough.
KERNEL(32, 32) check_wait(WaitArgs a) {
    if (threadIdx.x) return;
    u32 looks = 0;
    while (looks < a.most && !*(volatile const u32 *)a.flag) looks++;
    *a.looks = looks;
}
KERNEL(32, 32) check_illegal_write(IllegalWriteArgs a) {
    if (threadIdx.x == 0) illegal_write(a.at);
}
