// A driver, a compiler and a GEMM library without a GPU, for tests: what cudarc calls of libcuda, libnvrtc and libcublasLt, over memory
// of the host and kernels on fibers (cuda_host.h). It stands behind the kernels, and before nvrtc.cpp, blas.cpp and nccl.cpp, in one library, which goes
// by the names of all.
//
// Streams are lazy: an order runs when its stream is waited for, or one at a time when it is asked whether it is done. Copies read
// pinned memory when they run, not when they are asked for. Device memory ends within 256 bytes of a page's end, and lies between pages that nothing
// may touch, so that a kernel stops that reads far beside it; what is left of its own pages is looked at when it is freed. A stream that captures
// keeps what it is asked for in a graph; launching that asks for all of it again, on a stream of the same SMs. A stream that waits for an event has the event's stream
// run up to it; nothing else orders streams. Every GPU has streams and
// memory of its own, and a thread must be bound to the one that it asks.
//
// By the environment: FASER_FAKE_GPUS (how many), FASER_FAKE_MEMORY (bytes of each), FASER_FAKE_SMS, FASER_FAKE_SHARED (most of a block's bytes), FASER_FAKE_CAPABILITY (90 for 9.0), FASER_FAKE_GREEN=none|uneven
// (no green contexts, or splits with two SMs more and two lost), FASER_FAKE_VERSION, FASER_FAKE_LIBRARIES (for which CUDA NVRTC and cublasLt are), FASER_FAKE_INIT (what cuInit returns),
// FASER_FAKE_LOSE=KERNEL:N (the device is lost in the Nth
// run of that kernel, for as long as the process lives: libraries keep its context), FASER_FAKE_REFUSE=KERNEL:N (its Nth launch is refused), FASER_FAKE_REPORT=FILE (written when the last device is closed),
// FASER_FAKE_QUEUE (calls that a stream holds; one more waits), FASER_FAKE_PEERS=none|pairs|wrong (no GPU may write another's memory, or 0 and 1 each other's, 2 and 3 and so on; or all may, and what they write there becomes zeros),
// FASER_FAKE_PEERS_LOSE=RANK:N (the Nth sum of that rank over the others' memory never comes),
// FASER_FAKE_RECORD=FILE (what every stream does is a line there, in its order, and kernels, products and sums compute nothing: memory is
// address space alone, so that models of any size fit).
#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <memory>
#include <signal.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fake {
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, OUT_OF_RESOURCES = 701, NOT_SUPPORTED_HERE = 801, LAUNCH_FAILED = 719,
       PEERS_ALREADY = 704, PEERS_UNSUPPORTED = 217, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901 };
// What work returns that waits for another GPU: it stays the first of its stream.
enum { NOT_YET = -1 };
using Work = std::function<int()>;
struct Green { unsigned sms, streams, graphs; };
struct Graph { std::vector<Work> work; Green *green; unsigned sms; bool broken; };
struct Stream { std::deque<Work> work; unsigned sms; Green *green; Graph *captures; int device; bool running; };
// How often it was recorded, up to which of those its stream has come.
struct Event { unsigned asked, reached; Stream *stream; int device; };
struct Function { std::string name; size_t args; unsigned shared; bool loaded; };
struct Resource { int type; unsigned char padding[92]; unsigned sms, least, alignment; unsigned char more[36]; };
struct Block { char *at; size_t bytes; int device; };
struct Device { size_t used, left; unsigned retained; int lost; };
constexpr size_t PAGE = 4096, UNTOUCHED = 4 << 20; // between blocks
constexpr unsigned char GUARD = 0xA7;

static std::recursive_mutex lock;
static Device devices[16];
static thread_local int bound; // to this device, counted from 1
// What lasts as long as the process: a thread whose call never ends still looks at it while the process exits.
template <typename T> T &lasting(T begins = T()) { return *new T(std::move(begins)); }
static auto &streams = lasting<std::vector<Stream *>>();
static auto &blocks = lasting<std::map<uint64_t, Block>>();
static auto &runs = lasting<std::map<std::string, unsigned>>(), &launches = lasting<std::map<std::string, unsigned>>();
static auto &launches_by_sms = lasting<std::map<unsigned, unsigned>>(), &products_by_sms = lasting<std::map<unsigned, unsigned>>();
static size_t pinned, most_pinned;
static auto &pinned_blocks = lasting<std::map<void *, size_t>>();
static size_t product_rows;
static unsigned opened, greens_left, unloaded_launches, copies, fetches, events_left, graphs_left, graphs_captured, graphs_launched, graph_launches;
// Of NCCL: communicators that were made and are left, calls.
static unsigned comms_made, comms_left, reduced, gathered;
// GPUs that may write others' memory, by pairs.
static auto &reachable = lasting<std::set<std::pair<int, int>>>();
static auto &sums_of_rank = lasting<std::map<int, unsigned>>();
static auto &connections = lasting<std::string>("unset");
static thread_local Graph *capturing; // of this thread

inline size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, nullptr, 10) : otherwise;
}
inline int device_count() { return std::min<size_t>(number("FASER_FAKE_GPUS", 1), 16); }
inline Device &here() { return devices[bound - 1]; }
inline size_t memory() { return number("FASER_FAKE_MEMORY", size_t(1) << 30); }
inline unsigned most_shared() { return number("FASER_FAKE_SHARED", 232448); }
inline unsigned sms() { return number("FASER_FAKE_SMS", 132); }
// Where it is written what streams do, if it is.
inline FILE *record() {
    static FILE *file = getenv("FASER_FAKE_RECORD") ? fopen(getenv("FASER_FAKE_RECORD"), "w") : nullptr;
    return file;
}
// A line of the record, of the GPU that does it.
template <typename... Words> void note(int device, const char *format, Words... words) {
    if (!record()) return;
    fprintf(record(), "%d ", device);
    fprintf(record(), format, words...);
    fputc('\n', record());
    fflush(record());
}
// Kernels that compute all the same: what they write, others wait for.
inline bool decides(const std::string &kernel, std::vector<char> args) {
    // A group's first two sums, by which ranks find out whether they may write each other's memory.
    if (kernel == "sum_ranks") return *file_sum_ranks::calls(*(file_sum_ranks::SumRanksArgs *)args.data(), 0) < 2;
    return kernel == "draft_step" || kernel == "compact_pass";
}
// Copies of what is no larger are made in a record too: whole arrays are address space alone.
constexpr size_t SMALL = 64 << 10;
inline size_t up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
// Of a block: its first page, and the bytes of its pages.
inline char *first_page(const Block &block) { return block.at - (uint64_t)block.at % PAGE; }
inline size_t pages(const Block &block) { return up_to(block.at + up_to(block.bytes, 256) - first_page(block), PAGE); }
inline char *reserve(size_t bytes) {
    const size_t own = up_to(bytes, PAGE), all = own + 2 * UNTOUCHED;
    char *at = (char *)mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at + UNTOUCHED, own, PROT_READ | PROT_WRITE)) return nullptr;
    return at + UNTOUCHED + own - up_to(bytes, 256);
}
inline void release(const Block &block) { munmap(first_page(block) - UNTOUCHED, pages(block) + 2 * UNTOUCHED); }
// Whether a variable KERNEL:N names this kernel and this time.
inline bool named(const char *variable, const std::string &kernel, unsigned time) {
    const char *text = getenv(variable);
    return text && kernel + ":" + std::to_string(time) == text;
}
inline int step(Stream *s) {
    // It waits for an event, which waits for it in turn.
    if (s->running) return NOT_YET;
    Work work = std::move(s->work.front());
    s->work.pop_front();
    int &lost = devices[s->device].lost;
    s->running = true;
    const int code = lost ? lost : work();
    s->running = false;
    if (code == NOT_YET) {
        s->work.push_front(std::move(work));
        return NOT_YET;
    }
    if (code) lost = code;
    return lost;
}
// All that can run now; false if something waits for another GPU.
inline bool run(Stream *s) {
    while (!s->work.empty()) {
        if (step(s) == NOT_YET) return false;
    }
    return true;
}
// Lets other threads ask, who have waited for the lock.
inline void let_others() {
    lock.unlock();
    usleep(20);
    lock.lock();
}
inline int drain(Stream *s) {
    while (!run(s)) let_others();
    return devices[s->device].lost;
}
inline int drain_all(int device) {
    for (;;) {
        bool all = true;
        for (size_t i = 0; i < streams.size(); i++) {
            if (streams[i]->device == device) all &= run(streams[i]);
        }
        if (all) return devices[device].lost;
        let_others();
    }
}
inline int ask(void *stream, Work work) {
    auto *s = (Stream *)stream;
    if (!s || s->device != bound - 1) return INVALID_VALUE;
    if (here().lost) return here().lost;
    if (s->captures) {
        s->captures->work.push_back(std::move(work));
        return 0;
    }
    // A full queue blocks whoever asks, as the real one does; who waits for ever is told so.
    static const size_t most = number("FASER_FAKE_QUEUE", SIZE_MAX);
    for (int waits = 0; s->work.size() >= most; waits++) {
        if (step(s) == NOT_YET) let_others();
        if (waits == 500000) fprintf(stderr, "fake driver: %zu calls are queued, and nothing moves\n", most), abort();
    }
    s->work.push_back(std::move(work));
    return 0;
}
inline Stream *open_stream(unsigned sms, Green *green) {
    streams.push_back(new Stream{{}, sms, green, nullptr, bound - 1, false});
    return streams.back();
}
inline void look_at_margins(const Block &block) {
    const char *first = first_page(block), *end = first + pages(block);
    for (const char *at = first; at != end; at++) {
        if (at == block.at) at += block.bytes;
        if (at == end) break;
        if ((unsigned char)*at == GUARD) continue;
        fprintf(stderr, "fake driver: a write beside %zu bytes of device memory\n", block.bytes);
        abort();
    }
}
// The kernel that runs, for whoever asks why the process ended.
static char running[64];
static struct sigaction before;
inline void say_what_ran(int) {
    const char words[] = "fake driver: SIGSEGV, the last kernel was ";
    (void)!write(2, words, sizeof words - 1), (void)!write(2, running, strlen(running)), (void)!write(2, "\n", 1);
    // The fault comes again, and finds whoever was there first.
    sigaction(SIGSEGV, &before, nullptr);
}
// What cannot be captured breaks the graph of the thread, as at the real driver.
inline bool breaks() {
    if (capturing) capturing->broken = true;
    return capturing;
}
// Device memory that is read or written must have been allocated, on the GPU that is asked.
inline bool inside(uint64_t at, size_t bytes) {
    auto found = blocks.upper_bound(at);
    if (found == blocks.begin()) return false;
    --found;
    return found->second.device == bound - 1 && at + bytes <= found->first + found->second.bytes;
}
// A call that came with a later driver is no symbol of this one.
inline void needs(size_t version, const char *call) {
    if (number("FASER_FAKE_VERSION", 13000) >= version) return;
    fprintf(stderr, "fake driver: %s came with %zu\n", call, version);
    abort();
}
} // namespace fake
#define LOCKED std::lock_guard<std::recursive_mutex> guard(fake::lock)
#define NEEDS(version) fake::needs(version, __func__)
#define UNCAPTURED if (fake::breaks()) return fake::CAPTURE_UNSUPPORTED
#define BOUND LOCKED; if (!fake::bound) return fake::INVALID_CONTEXT; if (fake::here().lost) return fake::here().lost

namespace fake {
// A module is its compiler's text (nvrtc.cpp), or a real cubin: an ELF file of 64 bits, which ends with its sections or with their table.
size_t image_bytes(const char *image) {
    if (memcmp(image, "\x7f" "ELF", 4)) return strlen(image);
    const auto read = [](const char *from, size_t bytes) {
        size_t value = 0;
        memcpy(&value, from, bytes);
        return value;
    };
    const size_t table = read(image + 0x28, 8), each = read(image + 0x3a, 2), count = read(image + 0x3c, 2);
    size_t end = table + each * count;
    for (size_t i = 0; i < count; i++) {
        const char *section = image + table + i * each;
        const bool empty = read(section + 4, 4) == 8; // NOBITS
        end = std::max(end, empty ? 0 : read(section + 0x18, 8) + read(section + 0x20, 8));
    }
    return end;
}
} // namespace fake

namespace fake {
inline bool peers_are(const char *so) {
    const char *peers = getenv("FASER_FAKE_PEERS");
    return peers && !strcmp(peers, so);
}
// A sum over the memory of several GPUs: kernels run one after the other here, so each rank brings its part, and takes the sum when all have.
struct Sum { bool begun = false, lost = false; };
inline int sum_ranks(Sum &sum, std::vector<char> bytes, const unsigned *grid, unsigned threads, size_t shared, unsigned time) {
    auto &args = *(file_sum_ranks::SumRanksArgs *)bytes.data();
    const auto run = [&](unsigned half) -> int {
        args.halves = half;
        const char *fault = faser_launch("sum_ranks", bytes.data(), bytes.size(), grid, threads, shared, time % 3);
        if (fault) fprintf(stderr, "fake driver: sum_ranks: %s\n", fault);
        return fault ? (int)LAUNCH_FAILED : 0;
    };
    const auto owner = [](const char *room) {
        auto found = blocks.upper_bound((uint64_t)room);
        if (found == blocks.begin()) return -1;
        --found;
        return (uint64_t)room < found->first + found->second.bytes ? found->second.device : -1;
    };
    const int own = owner(args.rooms[args.rank]);
    for (unsigned rank = 0; rank < args.ranks; rank++) {
        const int other = owner(args.rooms[rank]);
        if (own >= 0 && other >= 0 && (own == other || reachable.count({own, other}))) continue;
        fprintf(stderr, "fake driver: GPU %d may not write memory of GPU %d\n", own, other);
        return LAUNCH_FAILED;
    }
    if (!sum.begun) {
        sum.begun = true;
        sum.lost = named("FASER_FAKE_PEERS_LOSE", std::to_string(args.rank), ++sums_of_rank[args.rank]);
        const unsigned call = *file_sum_ranks::calls(args, 0) + 1;
        if (int code = sum.lost ? 0 : run(file_sum_ranks::BRINGS)) return code;
        for (unsigned rank = 0; rank < args.ranks && peers_are("wrong"); rank++)
            if (rank != args.rank) memset(file_sum_ranks::slot(args, rank, args.rank, 0, call), 0, args.slot * sizeof(float));
    }
    bool all = !sum.lost;
    for (unsigned block = 0; block < grid[0] && all; block++) {
        const unsigned call = *file_sum_ranks::calls(args, block) + 1;
        for (unsigned rank = 0; rank < args.ranks; rank++) all &= file_sum_ranks::has_come(args, rank, block, call);
    }
    if (!all && !*args.stop && !*file_sum_ranks::left(args)) return NOT_YET;
    sum.begun = false;
    // What has waited for it to begin brings nothing any more.
    if (sum.lost) *file_sum_ranks::left(args) = 1;
    return run(file_sum_ranks::TAKES);
}
} // namespace fake

extern "C" {
int cuDriverGetVersion(int *version) { *version = fake::number("FASER_FAKE_VERSION", 13000); return 0; }
int cuInit(unsigned) {
    LOCKED;
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    fake::connections = connections ? connections : "unset";
    static bool listens;
    if (!listens) {
        struct sigaction action = {};
        action.sa_handler = fake::say_what_ran, action.sa_flags = SA_ONSTACK;
        listens = !sigaction(SIGSEGV, &action, &fake::before);
    }
    return fake::number("FASER_FAKE_INIT", 0);
}
int cuDeviceGetCount(int *count) { *count = fake::device_count(); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < fake::device_count() ? 0 : 101; }
int cuDeviceGetName(char *name, int length, int) { snprintf(name, length, "fake GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = fake::memory(); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    const int capability = fake::number("FASER_FAKE_CAPABILITY", 90);
    *value = attribute == 16 ? fake::sms() : attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 97 ? fake::most_shared() : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { LOCKED; *context = (void *)(intptr_t)(device + 1); fake::opened += !fake::devices[device].retained++; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) {
    LOCKED;
    fake::Device &own = fake::devices[device];
    if (--own.retained) return 0;
    // Its memory goes, and who may write it; what was wrong with it stays, as where others retain it.
    for (auto at = fake::reachable.begin(); at != fake::reachable.end();)
        at = at->first == device || at->second == device ? fake::reachable.erase(at) : std::next(at);
    for (auto at = fake::blocks.begin(); at != fake::blocks.end();) {
        if (at->second.device != device) { ++at; continue; }
        fake::release(at->second);
        at = fake::blocks.erase(at);
    }
    own.left = own.used, own.used = 0;
    size_t left = 0;
    for (auto &each : fake::devices) {
        if (each.retained) return 0;
        left += each.left;
    }
    const char *path = getenv("FASER_FAKE_REPORT");
    FILE *file = path ? fopen(path, "w") : nullptr;
    if (!file) return 0;
    fprintf(file, "memory left %zu\nstreams left %zu\ncopies %u\nmost pinned memory %zu\n", left, fake::streams.size(), fake::copies, fake::most_pinned);
    fprintf(file, "rows of products %zu\nfetches %u\ngraphs left %u\ngraphs captured %u\ngraphs launched %u\nlaunches by graphs %u\n", fake::product_rows, fake::fetches, fake::graphs_left, fake::graphs_captured,
            fake::graphs_launched, fake::graph_launches);
    fprintf(file, "events left %u\ncontexts opened %u\ngreen contexts left %u\nlaunches of kernels not loaded %u\n", fake::events_left, fake::opened, fake::greens_left, fake::unloaded_launches);
    fprintf(file, "CUDA_DEVICE_MAX_CONNECTIONS at cuInit %s\n", fake::connections.c_str());
    fprintf(file, "communicators made %u\ncommunicators left %u\nall-reduces %u\nall-gathers %u\n", fake::comms_made, fake::comms_left, fake::reduced, fake::gathered);
    for (auto &entry : fake::launches_by_sms) fprintf(file, "launches on %u SMs %u\n", entry.first, entry.second);
    for (auto &entry : fake::products_by_sms) fprintf(file, "products on %u SMs %u\n", entry.first, entry.second);
    for (auto &entry : fake::runs) fprintf(file, "runs of %s %u\n", entry.first.c_str(), entry.second);
    fclose(file);
    return 0;
}
int cuDeviceCanAccessPeer(int *may, int device, int other) {
    *may = device != other && !fake::peers_are("none") && (!fake::peers_are("pairs") || device / 2 == other / 2);
    return 0;
}
int cuCtxEnablePeerAccess(void *context, unsigned flags) {
    BOUND;
    const int other = (int)(intptr_t)context - 1;
    if (flags || other == fake::bound - 1) return fake::INVALID_VALUE;
    int may = 0;
    cuDeviceCanAccessPeer(&may, fake::bound - 1, other);
    if (!may) return fake::PEERS_UNSUPPORTED;
    const bool first = fake::reachable.insert({fake::bound - 1, other}).second;
    return first ? 0 : (int)fake::PEERS_ALREADY;
}
int cuCtxSetCurrent(void *context) { fake::bound = (int)(intptr_t)context; return 0; }
int cuCtxSynchronize() { BOUND; UNCAPTURED; return fake::drain_all(fake::bound - 1); }

// ---- memory
int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    BOUND;
    UNCAPTURED;
    if (fake::here().used + bytes > fake::memory()) return fake::OUT_OF_MEMORY;
    const fake::Block block = {fake::reserve(bytes), bytes, fake::bound - 1};
    if (!block.at) return fake::OUT_OF_MEMORY;
    if (!fake::record()) {
        memset(fake::first_page(block), fake::GUARD, fake::pages(block));
        memset(block.at, 0xEE, bytes);
    }
    *at = (uint64_t)block.at;
    fake::blocks[*at] = block;
    fake::here().used += bytes;
    return 0;
}
int cuMemFree_v2(uint64_t at) {
    LOCKED;
    fake::drain_all(fake::bound - 1);
    auto found = fake::blocks.find(at);
    if (found == fake::blocks.end() || found->second.device != fake::bound - 1) return fake::INVALID_VALUE;
    if (!fake::record()) fake::look_at_margins(found->second);
    fake::here().used -= found->second.bytes;
    fake::release(found->second);
    fake::blocks.erase(found);
    return 0;
}
int cuMemGetInfo_v2(size_t *left, size_t *total) { BOUND; *total = fake::memory(); *left = *total - fake::here().used; return 0; }
int cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    BOUND;
    UNCAPTURED;
    *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    fake::pinned_blocks[*at] = bytes;
    fake::pinned += bytes;
    fake::most_pinned = std::max(fake::most_pinned, fake::pinned);
    return 0;
}
int cuMemFreeHost(void *at) {
    LOCKED;
    fake::drain_all(fake::bound - 1);
    fake::pinned -= fake::pinned_blocks[at];
    fake::pinned_blocks.erase(at);
    free(at);
    return 0;
}
int cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned) { *device = (uint64_t)host; return 0; }
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
    BOUND;
    UNCAPTURED;
    if (!fake::inside(at, bytes)) return fake::INVALID_VALUE;
    if (!fake::record()) memset((void *)at, value, bytes);
    return 0;
}
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *stream) {
    BOUND;
    if (!fake::inside(at, bytes)) return fake::INVALID_VALUE;
    const int device = fake::bound - 1;
    return fake::ask(stream, [=] {
        fake::note(device, "zeros %zu", bytes);
        if (!fake::record() || bytes <= fake::SMALL) memset((void *)at, value, bytes);
        return 0;
    });
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    BOUND;
    UNCAPTURED;
    if (!fake::inside(to, bytes)) return fake::INVALID_VALUE;
    fake::copies++;
    const int device = fake::bound - 1;
    return fake::ask(stream, [=] { fake::note(device, "send %zu", bytes); memcpy((void *)to, from, bytes); return 0; });
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    BOUND;
    UNCAPTURED;
    if (!fake::inside(from, bytes)) return fake::INVALID_VALUE;
    fake::copies++, fake::fetches++;
    const int device = fake::bound - 1;
    return fake::ask(stream, [=] { fake::note(device, "fetch %zu", bytes); memcpy(to, (const void *)from, bytes); return 0; });
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    BOUND;
    if (!fake::inside(to, bytes) || !fake::inside(from, bytes)) return fake::INVALID_VALUE;
    const int device = fake::bound - 1;
    return fake::ask(stream, [=] {
        fake::note(device, "copy %zu", bytes);
        if (!fake::record() || bytes <= fake::SMALL) memmove((void *)to, (const void *)from, bytes);
        return 0;
    });
}
// Rows with a distance between them: CUDA_MEMCPY2D, both sides on the device.
struct Rows {
    size_t from_x, from_y; unsigned from_type; const void *from_host; uint64_t from; void *from_array; size_t from_pitch;
    size_t to_x, to_y; unsigned to_type; void *to_host; uint64_t to; void *to_array; size_t to_pitch, bytes, rows;
};
int cuMemcpy2DAsync_v2(const Rows *given, void *stream) {
    BOUND;
    const Rows r = *given;
    if (r.from_type != 2 || r.to_type != 2 || r.from_x || r.from_y || r.to_x || r.to_y || !r.rows || r.bytes > r.from_pitch || r.bytes > r.to_pitch) return fake::INVALID_VALUE;
    if (!fake::inside(r.from, (r.rows - 1) * r.from_pitch + r.bytes) || !fake::inside(r.to, (r.rows - 1) * r.to_pitch + r.bytes)) return fake::INVALID_VALUE;
    const int device = fake::bound - 1;
    return fake::ask(stream, [=] {
        fake::note(device, "copy %zu", r.bytes * r.rows);
        for (size_t row = 0; row < r.rows && !fake::record(); row++) memmove((void *)(r.to + row * r.to_pitch), (const void *)(r.from + row * r.from_pitch), r.bytes);
        return 0;
    });
}

// ---- green contexts and streams
int cuDeviceGetDevResource(int, fake::Resource *resource, int type) {
    NEEDS(12040);
    memset(resource, 0, sizeof *resource);
    resource->type = type, resource->sms = fake::sms(), resource->least = 8, resource->alignment = 8;
    return type == 1 ? 0 : fake::INVALID_VALUE;
}
int cuDevSmResourceSplitByCount(fake::Resource *first, unsigned *groups, const fake::Resource *all, fake::Resource *rest, unsigned, unsigned least) {
    NEEDS(12040);
    const char *green = getenv("FASER_FAKE_GREEN");
    if (green && !strcmp(green, "none")) return fake::NOT_SUPPORTED_HERE;
    const bool uneven = green && !strcmp(green, "uneven");
    const unsigned count = (least + 7) / 8 * 8 + 2 * uneven;
    if (*groups != 1 || count > all->sms) return fake::INVALID_VALUE;
    *first = *rest = *all;
    first->sms = count, rest->sms = all->sms - count - 2 * uneven;
    return 0;
}
int cuDevResourceGenerateDesc(void **description, fake::Resource *resource, unsigned count) {
    NEEDS(12040);
    *description = (void *)(uintptr_t)resource->sms;
    return count == 1 && resource->sms ? 0 : fake::INVALID_VALUE;
}
int cuGreenCtxCreate(void **context, void *description, int, unsigned flags) {
    NEEDS(12040);
    BOUND;
    *context = new fake::Green{(unsigned)(uintptr_t)description, 0, 0};
    fake::greens_left++;
    return flags == 1 ? 0 : fake::INVALID_VALUE;
}
int cuGreenCtxDestroy(void *context) {
    LOCKED;
    auto *green = (fake::Green *)context;
    // What streams or graphs need stays, and is counted at the end.
    if (green->streams || green->graphs) return fake::INVALID_VALUE;
    delete green;
    fake::greens_left--;
    return 0;
}
int cuGreenCtxStreamCreate(void **stream, void *context, unsigned flags, int) {
    NEEDS(12050);
    BOUND;
    auto *green = (fake::Green *)context;
    green->streams++;
    *stream = fake::open_stream(green->sms, green);
    return flags == 1 ? 0 : fake::INVALID_VALUE;
}
int cuStreamCreateWithPriority(void **stream, unsigned flags, int) {
    BOUND;
    *stream = fake::open_stream(fake::sms(), nullptr);
    return flags == 1 ? 0 : fake::INVALID_VALUE;
}
int cuStreamDestroy_v2(void *stream) {
    LOCKED;
    auto *s = (fake::Stream *)stream;
    fake::drain(s);
    if (s->green) s->green->streams--;
    for (auto at = fake::streams.begin(); at != fake::streams.end(); ++at) {
        if (*at == s) { fake::streams.erase(at); break; }
    }
    delete s;
    return 0;
}
int cuStreamSynchronize(void *stream) { BOUND; UNCAPTURED; return fake::drain((fake::Stream *)stream); }
int cuStreamQuery(void *stream) {
    BOUND;
    UNCAPTURED;
    auto *s = (fake::Stream *)stream;
    if (!s->work.empty() && fake::step(s) == fake::NOT_YET) fake::let_others();
    return fake::here().lost ? fake::here().lost : s->work.empty() ? 0 : (int)fake::NOT_READY;
}

// ---- events
int cuEventCreate(void **event, unsigned flags) {
    BOUND;
    UNCAPTURED;
    *event = new std::shared_ptr<fake::Event>(new fake::Event{0, 0, nullptr, fake::bound - 1});
    fake::events_left++;
    return flags == 2 ? 0 : fake::INVALID_VALUE; // without times
}
int cuEventDestroy_v2(void *event) { LOCKED; delete (std::shared_ptr<fake::Event> *)event; fake::events_left--; return 0; }
int cuEventRecord(void *event, void *stream) {
    BOUND;
    UNCAPTURED;
    auto e = *(std::shared_ptr<fake::Event> *)event;
    auto *s = (fake::Stream *)stream;
    if (e->device != s->device) return fake::INVALID_VALUE;
    // What waits for an earlier record of it may not wait for another stream.
    if (e->stream && e->stream != s && e->reached < e->asked) fake::drain(e->stream);
    e->stream = s;
    const unsigned number = ++e->asked;
    return fake::ask(stream, [=] { e->reached = number; return 0; });
}
int cuEventQuery(void *event) {
    BOUND;
    UNCAPTURED;
    auto e = *(std::shared_ptr<fake::Event> *)event;
    if (e->device != fake::bound - 1) return fake::INVALID_VALUE;
    if (e->reached < e->asked && !e->stream->work.empty() && fake::step(e->stream) == fake::NOT_YET) fake::let_others();
    return fake::here().lost ? fake::here().lost : e->reached == e->asked ? 0 : (int)fake::NOT_READY;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    BOUND;
    UNCAPTURED;
    auto e = *(std::shared_ptr<fake::Event> *)event;
    const unsigned number = e->asked;
    if (flags || e->device != fake::bound - 1) return fake::INVALID_VALUE;
    return fake::ask(stream, [=] {
        while (e->reached < number && !e->stream->work.empty()) {
            if (int code = fake::step(e->stream)) return code;
        }
        return e->reached < number ? (int)fake::NOT_YET : 0;
    });
}

// ---- graphs
int cuStreamBeginCapture_v2(void *stream, int mode) {
    BOUND;
    auto *s = (fake::Stream *)stream;
    if (s->captures || fake::capturing || mode != 1) return fake::INVALID_VALUE;
    s->captures = fake::capturing = new fake::Graph{{}, s->green, s->sms, false};
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph) {
    LOCKED;
    auto *s = (fake::Stream *)stream;
    if (!s->captures || s->captures != fake::capturing) return fake::INVALID_VALUE;
    fake::Graph *captured = s->captures;
    s->captures = fake::capturing = nullptr;
    *graph = nullptr;
    if (captured->broken) { delete captured; return fake::CAPTURE_INVALIDATED; }
    *graph = captured;
    return 0;
}
int cuGraphInstantiateWithFlags(void **instance, void *graph, unsigned long long flags) {
    BOUND;
    if (flags) return fake::INVALID_VALUE;
    *instance = new fake::Graph(*(fake::Graph *)graph);
    if (((fake::Graph *)graph)->green) ((fake::Graph *)graph)->green->graphs++;
    fake::graphs_left++, fake::graphs_captured++;
    return 0;
}
int cuGraphDestroy(void *graph) { LOCKED; delete (fake::Graph *)graph; return 0; }
int cuGraphExecDestroy(void *instance) {
    LOCKED;
    auto *graph = (fake::Graph *)instance;
    if (graph->green) graph->green->graphs--;
    delete graph;
    fake::graphs_left--;
    return 0;
}
int cuGraphLaunch(void *instance, void *stream) {
    BOUND;
    UNCAPTURED;
    auto *graph = (fake::Graph *)instance;
    auto *s = (fake::Stream *)stream;
    // Its nodes keep the SMs of the stream they were captured on.
    if (graph->green != s->green || graph->sms != s->sms) return fake::INVALID_VALUE;
    fake::graphs_launched++, fake::graph_launches += graph->work.size();
    const int device = fake::bound - 1;
    const size_t nodes = graph->work.size();
    if (fake::record()) s->work.push_back([=] { fake::note(device, "graph %zu", nodes); return 0; });
    for (auto &work : graph->work) s->work.push_back(work);
    return 0;
}

// ---- kernels
int cuModuleLoadData(void **module, const void *image) {
    BOUND;
    UNCAPTURED;
    *module = new std::string((const char *)image, fake::image_bytes((const char *)image));
    return 0;
}
int cuModuleUnload(void *module) { LOCKED; delete (std::string *)module; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    BOUND;
    const size_t args = faser_args_size(name);
    if (!args || ((std::string *)module)->find(name) == std::string::npos) return fake::NOT_FOUND;
    *function = new fake::Function{name, args, 48u << 10, false}; // lives with the process, as a module's would with the module
    return 0;
}
int cuFuncLoad(void *function) { NEEDS(12040); BOUND; UNCAPTURED; ((fake::Function *)function)->loaded = true; return 0; }
int cuFuncGetAttribute(int *value, int, void *) { *value = 0; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) {
    if (attribute != 8 || value > (int)fake::most_shared()) return fake::INVALID_VALUE;
    ((fake::Function *)function)->shared = value;
    return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared, void *stream, void **parameters, void **) {
    BOUND;
    auto *f = (fake::Function *)function;
    if (ty != 1 || tz != 1 || !x || !y || !z || y > 65535 || z > 65535 || shared > f->shared) return fake::INVALID_VALUE;
    // Loaded lazily, which the real driver may stop every stream for.
    fake::unloaded_launches += !f->loaded;
    if (fake::named("FASER_FAKE_REFUSE", f->name, ++fake::launches[f->name])) return fake::OUT_OF_RESOURCES;
    fake::launches_by_sms[((fake::Stream *)stream)->sms]++;
    const char *bytes = (const char *)parameters[0];
    std::vector<char> args(bytes, bytes + f->args);
    const int device = fake::bound - 1;
    // As often as it runs, in a graph: one after the other.
    const auto sum = std::make_shared<fake::Sum>();
    return fake::ask(stream, [=] {
        if (fake::record()) {
            std::string hex;
            for (unsigned char byte : args) hex += "0123456789abcdef"[byte >> 4], hex += "0123456789abcdef"[byte & 15];
            fake::note(device, "kernel %s %u %u %u %u %s", f->name.c_str(), x, y, z, threads, hex.c_str());
            if (!fake::decides(f->name, args)) return 0;
        }
        const unsigned time = sum->begun ? fake::runs[f->name] : ++fake::runs[f->name];
        if (!sum->begun && fake::named("FASER_FAKE_LOSE", f->name, time)) return (int)fake::LAUNCH_FAILED;
        const unsigned grid[3] = {x, y, z};
        snprintf(fake::running, sizeof fake::running, "%s", f->name.c_str());
        if (f->name == "sum_ranks") return fake::sum_ranks(*sum, args, grid, threads, shared, time);
        // All orders of the fibers come up.
        const char *fault = faser_launch(f->name.c_str(), args.data(), args.size(), grid, threads, shared, time % 3);
        if (fault) fprintf(stderr, "fake driver: %s: %s\n", f->name.c_str(), fault);
        return fault ? (int)fake::LAUNCH_FAILED : 0;
    });
}
} // extern "C"
