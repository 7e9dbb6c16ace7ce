// The prelude of every kernel: it stands, as text, before each file of this folder. No file includes anything.
//
// Kernels take one struct by value, the same bytes that kernels/src/cuda declares for Rust. Numbers of rows are read from device
// memory (`rows`), so that a captured graph serves every number up to its bucket, and rows may leave in the middle of a pass.
// README.md of this folder says what is held in which type.
//
// Compiled by NVRTC for a device, and by a C++ compiler with FASER_HOST for tests: there each thread is a fiber (cuda_host.h of
// the tests). PTX stands in this file alone, in small functions, each with a twin for the host.
// Threads of a block; more registers of a thread than this are a mistake, for fewer warps would hide the memory's latency (kernels/tests/cuda_compile).
// A third number is the blocks that an SM is to have at least: one lets ptxas take the registers that it needs, where it would spill a few bytes to have more blocks.
#define KERNEL(threads, registers, ...) extern "C" __global__ void __launch_bounds__(threads, ##__VA_ARGS__)
#define DEVICE static __device__ __forceinline__

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct bf16 { u16 bits; };

static constexpr u32 WARP = 32;
static constexpr u32 BLOCK = 16; // positions of a KV block
static constexpr u32 NOTHING = 0xffffffffu;

// The rows of one sequence in a pass. Rows from `sampled_from` on, counted in the chunk, are samples. Before the place of the first of them
// stand `since` proposals, or, if that is negative, so many samples before the first place that a proposal may stand in.
struct Chunk { u32 first, rows, sampled_from; int since; };
// A row that gets a token: its row in the pass, its chunk, the token's position, how many proposals of its chunk stand before it.
struct Sample { u32 row, chunk, position, since; };
// How the tokens of a sequence are drawn; kernels/src/cuda says what is in it.
struct Sampler {
    u64 seed;
    const u32 *bias_tokens;
    const float *bias;
    const u32 *counts;
    u32 bias_len, top_k, greedy, reserved;
    float temperature, inverse, floor_offset, top_p, repetition, presence, frequency, unused;
};

// ---- numbers
DEVICE float infinity() { return __uint_as_float(0x7f800000u); }
DEVICE bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
DEVICE float widen(float x) { return x; }
DEVICE float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

#ifdef FASER_HOST
DEVICE u16 round_bf16(float x) { return emu::round_bf16(x); }
DEVICE u32 round_pair(float low, float high) { return (u32)emu::round_bf16(high) << 16 | emu::round_bf16(low); }
DEVICE float widen_half(u32 bits) { return emu::of_half((u16)bits); }
DEVICE u32 fused_pairs(u32 a, u32 b, u32 c) {
    const auto fused = [](u32 x, u32 y, u32 z) { return emu::of_bf16(x & 0xffff) * emu::of_bf16(y & 0xffff) + emu::of_bf16(z & 0xffff); };
    return round_pair(fused(a, b, c), fused(a >> 16, b >> 16, c >> 16));
}
DEVICE float exp2_fast(float x) { return emu::exp2(x); }
#else
// Rounded to nearest even.
DEVICE u16 round_bf16(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
// Two at once, as `pack`, for products: where `pack` is, ptxas has no registers for it.
DEVICE u32 round_pair(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
// The f16 in the low half.
DEVICE float widen_half(u32 bits) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"((u16)bits));
    return y;
}
// Two bf16 times two others, and two more.
DEVICE u32 fused_pairs(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
// 2 to the x, about 2 ulp; 2^-inf is 0.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
DEVICE u32 pack(float low, float high) { return (u32)round_bf16(high) << 16 | round_bf16(low); }
template <typename T> struct Of;
template <> struct Of<float> { DEVICE float round(float x) { return x; } };
template <> struct Of<bf16> { DEVICE bf16 round(float x) { bf16 y; y.bits = round_bf16(x); return y; } };

// e to the x, 2 ulp; at least e^-87 and at most e^88. The polynomial of the CPU's (kernels/src/simd/math.rs).
DEVICE float exp_of(float x) {
    x = fmaxf(fminf(x, 88.0f), -87.0f);
    const float shifted = __fmaf_rn(x, 1.442695041f, 12582912.0f); // + 1.5 * 2^23: rounds to an integer
    const float n = __fsub_rn(shifted, 12582912.0f);
    float r = __fmaf_rn(n, -0.6933594f, x);
    r = __fmaf_rn(n, 2.1219444e-4f, r);
    float p = 1.9875691e-4f;
    p = __fmaf_rn(p, r, 1.3982e-3f);
    p = __fmaf_rn(p, r, 8.333452e-3f);
    p = __fmaf_rn(p, r, 4.1665796e-2f);
    p = __fmaf_rn(p, r, 1.6666665e-1f);
    p = __fmaf_rn(p, r, 5e-1f);
    p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}
// The same, and no number of what is none.
DEVICE float exp_or_none(float x) { return x == x ? exp_of(x) : x; }

// Hyperbolic tangent, about 2 ulp; of what is infinite, 1 or -1; what is no number stays none.
DEVICE float tanh_of(float x) {
    if (x != x) return x;
    if (fabsf(x) >= 0.625f) return 1.0f - 2.0f / (exp_of(x + x) + 1.0f);
    const float square = x * x; // near 0 the exponential would lose the low bits of x
    float p = -5.7049887e-3f;
    p = __fmaf_rn(p, square, 2.0639089e-2f);
    p = __fmaf_rn(p, square, -5.3739716e-2f);
    p = __fmaf_rn(p, square, 1.3331442e-1f);
    p = __fmaf_rn(p, square, -3.333328e-1f);
    return __fmaf_rn(p * square, x, x);
}
// The first position that a row sees whose own is the last before `end`: in its window, or from `first` on, which is at most 1 beside a window.
DEVICE u32 first_seen(u32 end, u32 window, u32 first) { return window && end > window ? end - window : end > first ? first : 0; }

// A logit or a score, at most as large as a cap.
DEVICE float capped(float x, float cap) { return cap * tanh_of(x * (1.0f / cap)); }

// ---- a warp and a block
DEVICE u32 lane() { return threadIdx.x % WARP; }
DEVICE u32 warp() { return threadIdx.x / WARP; }
DEVICE float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
DEVICE u32 warp_sum(u32 x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
DEVICE float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}
DEVICE u64 warp_max(u64 x) {
    for (int step = 16; step > 0; step /= 2) {
        const u64 other = __shfl_xor_sync(~0u, x, step);
        x = other > x ? other : x;
    }
    return x;
}
// All threads get the sum, added in the same order on each; `shared` has a place for each warp.
DEVICE float block_sum(float x, float *shared) {
    x = warp_sum(x);
    __syncthreads(); // what was in `shared` has been read
    if (lane() == 0) shared[warp()] = x;
    __syncthreads();
    float sum = 0.0f;
    for (u32 w = 0; w < blockDim.x / WARP; w++) sum += shared[w];
    return sum;
}
DEVICE u64 block_max(u64 x, u64 *shared) {
    x = warp_max(x);
    __syncthreads();
    if (lane() == 0) shared[warp()] = x;
    __syncthreads();
    u64 largest = 0;
    for (u32 w = 0; w < blockDim.x / WARP; w++) largest = shared[w] > largest ? shared[w] : largest;
    return largest;
}
// Puts a key among the best that a thread keeps, the best first; 0 is none.
template <u32 N> DEVICE void keep_best(u64 (&best)[N], u64 key) {
    if (key <= best[N - 1]) return;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        const u64 other = best[i];
        best[i] = key > other ? key : other;
        key = key > other ? other : key;
    }
}
// The best of all threads', which the one that has it gives away; 0 if none is left. Keys are all different; `shared` has a place for each warp.
template <u32 N> DEVICE u64 take_best(u64 (&best)[N], u64 *shared) {
    const u64 first = block_max(best[0], shared);
    if (first && best[0] == first) {
#pragma unroll
        for (u32 i = 0; i + 1 < N; i++) best[i] = best[i + 1];
        best[N - 1] = 0;
    }
    return first;
}
// How many threads of the block before this one have `set`; `total` is how many have it of all. `shared` has a place for each warp.
DEVICE u32 block_rank(bool set, u32 *shared, u32 &total) {
    const u32 votes = __ballot_sync(~0u, set);
    __syncthreads(); // what was in `shared` has been read
    if (lane() == 0) shared[warp()] = (u32)__popc(votes);
    __syncthreads();
    u32 before = (u32)__popc(votes & ((1u << lane()) - 1));
    total = 0;
    for (u32 w = 0; w < blockDim.x / WARP; w++) {
        before += w < warp() ? shared[w] : 0;
        total += shared[w];
    }
    return before;
}

// ---- memory and tensor cores
#ifdef FASER_HOST
#define DYNAMIC_SHARED(name) char *name = emu::dynamic_shared
DEVICE void copy_async(void *shared, const void *global, bool wanted) { emu::copy_async(shared, global, wanted); }
DEVICE void copy_commit() { emu::copy_commit(); }
template <int N> DEVICE void copy_wait() { emu::copy_wait(N); }
DEVICE void load_matrices(u32 *to, const void *row) { emu::load_matrices(to, row, false); }
DEVICE void load_matrices_transposed(u32 *to, const void *row) { emu::load_matrices(to, row, true); }
DEVICE void multiply_add(float *c, const u32 *a, u32 b0, u32 b1) { emu::multiply_add(c, a, b0, b1); }
DEVICE uint4 load_once(const void *at) { return *(const uint4 *)at; }
DEVICE void store_word(void *at, const uint4 &x) { *(uint4 *)at = x; }
DEVICE u32 this_sm() { return NOTHING; }
DEVICE void illegal_write(u32 *) { emu::fail("a write to memory that is not there"); }
DEVICE void tell_host(u32 *at, u32 value) { *at = value; }
DEVICE void tell_peer(u32 *at, u32 value) { *at = value; }
DEVICE u32 told(const u32 *at) { return *at; }
DEVICE uint4 load_told(const void *at) { return *(const uint4 *)at; }
DEVICE u32 load_told_word(const void *at) { return *(const u32 *)at; }
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
DEVICE u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }
// Copies 16 bytes in the background; zeros where not wanted.
DEVICE void copy_async(void *shared, const void *global, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(wanted ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N groups of this thread's copies are under way.
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// Four 8x8 matrices of bf16: lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 *to, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_matrices_transposed(u32 *to, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}
// c += a b: 16x8 += 16x16 times 16x8.
DEVICE void multiply_add(float *c, const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes that no one will ask for again: past the L1 cache.
DEVICE uint4 load_once(const void *at) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
}
// 16 bytes at once: an assignment of what a function gives becomes four stores of 4 bytes, each of which the L2 cache takes for a sector.
DEVICE void store_word(void *at, const uint4 &x) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
// The SM that this block runs on; a host has none.
DEVICE u32 this_sm() {
    u32 sm;
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    return sm;
}
DEVICE void illegal_write(u32 *at) { *(volatile u32 *)at = 1; }
// A word of the host's memory, which the host looks at while kernels run.
DEVICE void tell_host(u32 *at, u32 value) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
// A word of another GPU's memory: who is `told` it there sees what this block wrote before.
DEVICE void tell_peer(u32 *at, u32 value) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
// A word that another GPU, or the host, writes.
DEVICE u32 told(const u32 *at) {
    u32 x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
// 16 bytes that another GPU has written: not what the L1 cache had of them.
DEVICE uint4 load_told(const void *at) {
    uint4 x;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at) : "memory");
    return x;
}
// One of its words.
DEVICE u32 load_told_word(const void *at) {
    u32 x;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
#endif

// ---- the sampler's numbers: what the CPU's has (kernels/src/sampling), bit for bit
// A number and a token as one word: the larger number, then the lower token, is the larger word. 0 is less than any.
DEVICE u32 ordered(float x) {
    const u32 bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE u64 key_of(float x, u32 token) { return (u64)ordered(x) << 32 | (u32)~token; }
DEVICE float number_of(u64 key) {
    const u32 bits = (u32)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}
// Token 0 where nothing could be chosen.
DEVICE u32 token_of(u64 key) { return key ? ~(u32)key : 0; }

// ln(1 + f) + e ln 2; single-rounding operations only.
DEVICE float ln_scaled(float f, float e) {
    const float c[8] = {-1.151461e-1f, 1.16769984e-1f, -1.2420141e-1f, 1.4249323e-1f, -1.6668057e-1f, 2.0000715e-1f, -2.4999994e-1f, 3.333333e-1f};
    float p = 7.0376836e-2f;
    for (int i = 0; i < 8; i++) p = __fadd_rn(__fmul_rn(p, f), c[i]);
    const float square = __fmul_rn(f, f);
    float tail = __fmul_rn(__fmul_rn(p, f), square);
    tail = __fadd_rn(tail, __fmul_rn(e, -2.1219444e-4f));
    tail = __fsub_rn(tail, __fmul_rn(square, 0.5f));
    return __fadd_rn(__fadd_rn(f, tail), __fmul_rn(e, 0.6933594f));
}
DEVICE float ln_of(float x) {
    const u32 offset = __float_as_uint(x) + (0x3f800000u - 0x3f3504f3u);
    const float e = __fsub_rn(__int2float_rn((int)(offset >> 23)), 127.0f);
    return ln_scaled(__fsub_rn(__uint_as_float((offset & 0x007fffffu) + 0x3f3504f3u), 1.0f), e);
}
// The two keys of the noise of a position.
DEVICE u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
DEVICE u64 noise_keys(u64 seed, u32 position) { return mix(mix(seed + 0x9e3779b97f4a7c15ull) + position); }
// The Gumbel variate of a token.
DEVICE float noise(u64 keys, u32 token) {
    u32 h = token ^ (u32)keys;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    h = (h ^ (h >> 16)) + (u32)(keys >> 32);
    h = (h ^ (h >> 17)) * 0xed5ad4bbu;
    h = (h ^ (h >> 11)) * 0xac4c1b51u;
    h = (h ^ (h >> 15)) * 0x31848babu;
    h ^= h >> 14;
    const float high_part = __fmul_rn(__int2float_rn((int)(h >> 16)), 1.0f / 65536.0f);
    const float low_part = __fadd_rn(__int2float_rn((int)(h & 0xffffu)), 0.5f);
    const float x = fminf(__fadd_rn(high_part, __fmul_rn(low_part, 1.0f / 4294967296.0f)), 1.0f - 1.0f / 16777216.0f);
    const bool small = x < 0.25f;
    const float exponential = __fsub_rn(0.0f, small ? ln_scaled(__fsub_rn(0.0f, x), 0.0f) : ln_of(__fsub_rn(1.0f, x)));
    return __fsub_rn(0.0f, ln_of(exponential));
}
