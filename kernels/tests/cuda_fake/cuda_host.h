// CUDA on fibers, for tests: each thread of a block is a fiber of one OS thread. In a chosen order, one warp after the other runs as far
// as it can without the rest, its lanes from shuffle to shuffle: what can be ahead is ahead. A kernel that lacks a barrier gives another result in at least one order. Copies in the background fill their target with
// poison when issued and happen only when waited for: a missing wait shows too, and a copy into what others still read.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct dim3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };

extern "C" void faser_fiber_switch(void **from, void *to);
asm(R"(
.text
.globl faser_fiber_switch
.hidden faser_fiber_switch
faser_fiber_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp, (%rdi); movq %rsi, %rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret
)");

namespace emu {
enum Wait { RUNS, AT_BLOCK, AT_WARP };
struct Copy { void *to; const void *from; bool wanted; };
struct Fiber {
    void *top;
    char *stack;
    bool done;
    Wait wait;
    dim3 thread;
    unsigned number;
    uint64_t slot; // what it shows the others of its warp
    std::vector<std::vector<Copy>> groups; // the last one is not committed
};
constexpr size_t STACK = 64 << 10;
static std::vector<Fiber> &fibers = *new std::vector<Fiber>; // threads run on while the process exits
static Fiber *current;
static void *scheduler;
static dim3 block_size, grid_size, block;
static std::function<void()> *body;
static int order;
static char *dynamic_shared;
static const char *fault;

inline void yield(Wait wait) {
    current->wait = wait;
    faser_fiber_switch(&current->top, scheduler);
}
[[noreturn]] inline void fail(const char *what) {
    fault = what;
    for (;;) faser_fiber_switch(&current->top, scheduler);
}
inline void entry() {
    (*body)();
    current->done = true;
    for (;;) faser_fiber_switch(&current->top, scheduler);
}
inline void begin(Fiber &f) {
    if (!f.stack) f.stack = (char *)aligned_alloc(64, STACK);
    void **top = (void **)(f.stack + STACK);
    *--top = 0;
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++) *--top = 0;
    f.top = top;
    f.done = false;
    f.wait = RUNS;
    f.groups.assign(1, {});
}
// The i-th fiber to run: ascending, descending, or in strides.
inline unsigned turn(unsigned i, unsigned n) {
    if (order == 0) return i;
    if (order == 1) return n - 1 - i;
    return (i * (n % 7 ? 7 : 1) + 13) % n;
}
// A warp runs as far as it can alone, up to a barrier of the block or its end; false if it could not move.
inline bool run_warp(unsigned first) {
    const unsigned n = fibers.size() - first < 32 ? fibers.size() - first : 32;
    bool moved = false;
    for (;;) {
        bool ran = false;
        for (unsigned i = 0; i < n; i++) {
            Fiber &f = fibers[first + turn(i, n)];
            if (f.done || f.wait != RUNS) continue;
            current = &f;
            faser_fiber_switch(&scheduler, f.top);
            if (fault) return false;
            moved = ran = true;
        }
        // It goes on when all of it that lives has come.
        unsigned live = 0, there = 0;
        for (unsigned l = first; l < first + n; l++) live += !fibers[l].done, there += !fibers[l].done && fibers[l].wait == AT_WARP;
        if (live && there == live) {
            for (unsigned l = first; l < first + n; l++) fibers[l].wait = RUNS;
        } else if (!ran) {
            return moved;
        }
    }
}
inline void run_block() {
    const unsigned n = fibers.size(), warps = n / 32;
    for (auto &f : fibers) begin(f);
    for (;;) {
        bool moved = false;
        for (unsigned w = 0; w < warps; w++) moved |= run_warp(turn(w, warps) * 32);
        if (fault) return;
        unsigned live = 0, there = 0;
        for (auto &f : fibers) live += !f.done, there += !f.done && f.wait == AT_BLOCK;
        if (!live) return;
        if (there == live) {
            for (auto &f : fibers) f.wait = RUNS;
            moved = true;
        }
        if (!moved) { fault = "deadlock: a barrier or shuffle that not all threads reach"; return; }
    }
}
template <class A> constexpr size_t args_size(void (*)(A)) { return sizeof(A); }
template <class A> const char *launch(void (*kernel)(A), const void *args, size_t args_bytes, const unsigned *grid, unsigned threads, size_t shared, int in_order) {
    if (args_bytes != sizeof(A)) return "the struct of arguments has another size in Rust";
    if (threads % 32 || threads > 1024) return "threads are not whole warps, or too many";
    A a;
    memcpy(&a, args, sizeof(A));
    std::function<void()> call = [&] { kernel(a); };
    body = &call, order = in_order, fault = nullptr;
    grid_size = {grid[0], grid[1], grid[2]}, block_size = {threads, 1, 1};
    for (auto &f : fibers) if (f.number >= threads) free(f.stack);
    fibers.resize(threads);
    for (unsigned i = 0; i < threads; i++) fibers[i].number = i, fibers[i].thread = {i, 0, 0};
    free(dynamic_shared);
    dynamic_shared = (char *)aligned_alloc(1024, (shared / 1024 + 1) * 1024);
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0] && !fault; x++) {
                block = {x, y, z};
                memset(dynamic_shared, 0xCD, shared);
                run_block();
            }
    return fault;
}

// ---- what threads of a warp show each other
inline Fiber &peer(unsigned l) { return fibers[current->number / 32 * 32 + l % 32]; }
template <class T> T shuffle(T value, unsigned from) {
    static_assert(sizeof(T) <= 8, "at most eight bytes");
    current->slot = 0;
    memcpy(&current->slot, &value, sizeof(T));
    yield(AT_WARP);
    T result;
    memcpy(&result, &peer(from).slot, sizeof(T));
    yield(AT_WARP);
    return result;
}
inline unsigned ballot(bool set) {
    current->slot = set;
    yield(AT_WARP);
    unsigned all = 0;
    for (unsigned l = 0; l < 32; l++) all |= unsigned(!peer(l).done && peer(l).slot) << l;
    yield(AT_WARP);
    return all;
}
inline bool all_of_block(bool set) {
    current->slot = set;
    yield(AT_BLOCK);
    bool all = true;
    for (auto &f : fibers) all &= f.done || f.slot;
    yield(AT_BLOCK);
    return all;
}

// ---- twins of the prelude's PTX
inline uint16_t round_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline float of_bf16(uint32_t u) {
    u <<= 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline float of_half(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
    return h >> 15 ? -size : size;
}
inline float exp2(float x) { return ::exp2f(x); }
inline void copy_async(void *to, const void *from, bool wanted) {
    memset(to, 0xFF, 16); // NaN
    current->groups.back().push_back({to, from, wanted});
}
inline void copy_commit() { current->groups.push_back({}); }
inline void copy_wait(size_t under_way) {
    auto &groups = current->groups;
    while (groups.size() - 1 > under_way) {
        for (auto &c : groups.front()) c.wanted ? memcpy(c.to, c.from, 16) : memset(c.to, 0, 16);
        groups.erase(groups.begin());
    }
}
inline void load_matrices(uint32_t *to, const void *row, bool transposed) {
    current->slot = (uint64_t)row;
    yield(AT_WARP);
    const unsigned g = current->number % 32 / 4, t = current->number % 4;
    for (unsigned m = 0; m < 4; m++) {
        uint16_t pair[2];
        for (unsigned i = 0; i < 2; i++) {
            const unsigned r = transposed ? 2 * t + i : g, c = transposed ? g : 2 * t + i;
            pair[i] = ((const uint16_t *)peer(m * 8 + r).slot)[c];
        }
        memcpy(&to[m], pair, 4);
    }
    yield(AT_WARP);
}
struct Fragment { uint32_t a[4], b[2]; };
inline void multiply_add(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    Fragment mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    current->slot = (uint64_t)&mine;
    yield(AT_WARP);
    const unsigned g = current->number % 32 / 4, t = current->number % 4;
    auto fragment = [](unsigned l) { return (const Fragment *)peer(l).slot; };
    auto half = [](uint32_t pair, unsigned i) { return of_bf16(i ? pair >> 16 : pair & 0xffff); };
    for (unsigned i = 0; i < 4; i++) {
        const unsigned r = g + 8 * (i / 2), n = 2 * t + i % 2;
        float sum = c[i];
        for (unsigned k = 0; k < 16; k++)
            sum += half(fragment(r % 8 * 4 + k % 8 / 2)->a[r / 8 + 2 * (k / 8)], k % 2) * half(fragment(n * 4 + k % 8 / 2)->b[k / 8], k % 2);
        c[i] = sum;
    }
    yield(AT_WARP);
}
} // namespace emu

#define threadIdx (emu::current->thread)
#define blockIdx (emu::block)
#define blockDim (emu::block_size)
#define gridDim (emu::grid_size)
inline void __syncthreads() { emu::yield(emu::AT_BLOCK); }
inline int __syncthreads_and(int set) { return emu::all_of_block(set); }
inline int __syncthreads_or(int set) { return !emu::all_of_block(!set); }
// Blocks run one after the other, and see what was written.
inline void __threadfence() {}
inline void __syncwarp(unsigned = ~0u) { emu::yield(emu::AT_WARP); }
template <class T> T __shfl_xor_sync(unsigned, T v, int step) { return emu::shuffle(v, emu::current->number ^ step); }
template <class T> T __shfl_sync(unsigned, T v, int from) { return emu::shuffle(v, from); }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned d) { unsigned l = emu::current->number % 32; return emu::shuffle(v, l < d ? l : l - d); }
inline unsigned __ballot_sync(unsigned, int set) { return emu::ballot(set); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> T atomicAdd(T *p, T v) {
    static_assert(sizeof(T) == 4, "shared memory has no addition of 64 bits: it would spin");
    T old = *p;
    *p += v;
    return old;
}
template <class T> T atomicOr(T *p, T v) { T old = *p; *p |= v; return old; }
template <class T> T atomicMin(T *p, T v) { T old = *p; *p = v < old ? v : old; return old; }
inline float __uint_as_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
inline uint32_t __float_as_uint(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
// Byte i of the result is the one of x (0 to 3) or y (4 to 7) that digit i of the selector says.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
    uint32_t all = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t from = selector >> 4 * i & 7;
        all |= ((from < 4 ? x : y) >> 8 * (from % 4) & 255) << 8 * i;
    }
    return all;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __int2float_rn(int x) { return (float)x; }
