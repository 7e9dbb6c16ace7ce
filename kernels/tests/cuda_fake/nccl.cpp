// The collectives of the fake driver: ranks are threads of one process and find each other by their unique id. A call is an order of the
// stream: it brings what the rank has when it comes to its turn, and waits for the others there. Sums are in the order of the ranks.
//
// By the environment: FASER_FAKE_NCCL (the version, such as 23003), FASER_FAKE_NCCL_LOSE=RANK:N (the Nth call of that rank in this process
// never comes), FASER_FAKE_NCCL_FAIL=RANK:N (from its Nth call on its communicator reports an error, and the call never comes).
// NCCL_MULTI_RANK_GPU_ENABLE=1 allows several ranks on one GPU, as at the real one. With FASER_FAKE_NCCL_DIR=FOLDER ranks of a group may be in
// several processes: what they bring are files in a folder of the group's.
namespace fake {
enum { NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum Kind { REDUCES, GATHERS };
struct Id { char internal[128]; };
struct Config { size_t size; unsigned magic, version; int blocking, cluster, least_blocks, most_blocks; };
struct Call {
    Kind kind;
    int type;
    size_t count;
    std::vector<std::vector<char>> brought;
    std::vector<bool> here;
    int came = 0, taken = 0;
};
struct Ranks {
    int count, joined = 0;
    std::vector<int> devices;
    std::map<unsigned, Call> calls;
    // Where what others bring is found, if some are in other processes.
    std::string folder;
    bool all_here() {
        if (folder.empty()) return joined == count;
        for (int rank = 0; rank < count; rank++) if (access((folder + "/joined." + std::to_string(rank)).c_str(), F_OK)) return false;
        return true;
    }
};
struct Comm { std::shared_ptr<Ranks> ranks; int rank, device; unsigned calls = 0; bool ended = false; int error = 0; };
using CommHandle = std::shared_ptr<Comm>;

static auto &by_id = lasting<std::map<std::string, std::shared_ptr<Ranks>>>();
static auto &calls_of_rank = lasting<std::map<int, unsigned>>();
static unsigned ids;

inline std::string file_of(const Ranks &ranks, unsigned call, int rank) {
    return ranks.folder + "/" + std::to_string(call) + "." + std::to_string(rank);
}
// Whole at once: whoever sees the file sees all of it.
inline void bring(const std::string &file, const std::vector<char> &brought) {
    const std::string half = file + ".half";
    FILE *to = fopen(half.c_str(), "w");
    if (!to || fwrite(brought.data(), 1, brought.size(), to) != brought.size() || fclose(to) || rename(half.c_str(), file.c_str())) abort();
}
inline bool brought(const std::string &file, std::vector<char> &to, size_t bytes) {
    FILE *from = fopen(file.c_str(), "r");
    if (!from) return false;
    to.resize(bytes + 1);
    const size_t count = fread(to.data(), 1, bytes + 1, from);
    fclose(from);
    if (count != bytes) {
        fprintf(stderr, "fake NCCL: %s has %zu bytes, not %zu\n", file.c_str(), count, bytes);
        abort();
    }
    to.resize(bytes);
    return true;
}

inline size_t size_of(int type) { return type == 9 ? 2 : 4; }
// What all have brought, as the rank wants it.
inline void take(const Call &call, char *to) {
    if (call.kind == GATHERS) {
        for (auto &brought : call.brought) to = std::copy(brought.begin(), brought.end(), to);
        return;
    }
    for (size_t i = 0; i < call.count; i++) {
        float sum = 0;
        for (size_t rank = 0; rank < call.brought.size(); rank++) {
            const char *own = call.brought[rank].data();
            const float value = call.type == 9 ? emu::of_bf16(((const uint16_t *)own)[i]) : ((const float *)own)[i];
            sum = rank ? sum + value : value;
        }
        if (call.type == 9) ((uint16_t *)to)[i] = emu::round_bf16(sum);
        else ((float *)to)[i] = sum;
    }
}
inline int collective(Kind kind, const void *from, void *to, size_t count, int type, void *handle, void *stream) {
    LOCKED;
    CommHandle comm = *(CommHandle *)handle;
    const size_t bytes = count * size_of(type), all = kind == GATHERS ? comm->ranks->count : 1;
    if (breaks() || !count || (type != 7 && type != 9) || comm->device != bound - 1) return NCCL_INVALID_ARGUMENT;
    if (!inside((uint64_t)from, bytes) || !inside((uint64_t)to, bytes * all)) return NCCL_INVALID_ARGUMENT;
    const unsigned number = comm->calls++, of_rank = ++calls_of_rank[comm->rank];
    const auto planted = [&](const char *variable) { return named(variable, std::to_string(comm->rank), of_rank); };
    const bool fails = planted("FASER_FAKE_NCCL_FAIL"), never = fails || planted("FASER_FAKE_NCCL_LOSE");
    if (fails) comm->error = NCCL_REMOTE_ERROR;
    (kind == REDUCES ? reduced : gathered)++;
    const int code = ask(stream, [=]() -> int {
        if (comm->ended) return 0;
        if (never) return NOT_YET;
        if (record()) {
            note(comm->device, "%s %zu %d", kind == REDUCES ? "all-reduce" : "all-gather", bytes, comm->ranks->count);
            return 0;
        }
        Ranks &ranks = *comm->ranks;
        auto made = ranks.calls.try_emplace(number, Call{kind, type, count, {}, {}});
        Call &call = made.first->second;
        if (made.second) call.brought.resize(ranks.count), call.here.resize(ranks.count);
        if (call.kind != kind || call.type != type || call.count != count) {
            fprintf(stderr, "fake NCCL: rank %d comes to call %u with another call of %zu than the first, of %zu\n", comm->rank, number, count, call.count);
            abort();
        }
        if (!call.here[comm->rank]) {
            call.brought[comm->rank].assign((const char *)from, (const char *)from + bytes);
            call.here[comm->rank] = true, call.came++;
            if (!ranks.folder.empty()) bring(file_of(ranks, number, comm->rank), call.brought[comm->rank]);
        }
        for (int rank = 0; rank < ranks.count && !ranks.folder.empty(); rank++)
            if (!call.here[rank] && brought(file_of(ranks, number, rank), call.brought[rank], bytes)) call.here[rank] = true, call.came++;
        if (call.came < ranks.count) return NOT_YET;
        take(call, (char *)to);
        // All have taken the call before this one's predecessor: they have begun that.
        if (number > 1 && !ranks.folder.empty()) remove(file_of(ranks, number - 2, comm->rank).c_str());
        if (++call.taken == ranks.joined) ranks.calls.erase(number);
        return 0;
    });
    return code ? 1 : 0;
}
inline void end(void *handle) {
    LOCKED;
    (*(CommHandle *)handle)->ended = true;
    delete (CommHandle *)handle;
    comms_left--;
}
} // namespace fake
extern "C" {
int ncclGetVersion(int *version) { *version = fake::number("FASER_FAKE_NCCL", 23003); return 0; }
int ncclGetUniqueId(fake::Id *id) {
    LOCKED;
    memset(id, 0, sizeof *id);
    const char *folder = getenv("FASER_FAKE_NCCL_DIR");
    if (folder) snprintf(id->internal, sizeof id->internal, "%s/%d.%u", folder, getpid(), ++fake::ids);
    else snprintf(id->internal, sizeof id->internal, "group %u", ++fake::ids);
    return 0;
}
int ncclCommInitRankConfig(void **comm, int count, fake::Id id, int rank, const fake::Config *config) {
    LOCKED;
    if (config->magic != 0xcafebeef || config->blocking != 0 || rank < 0 || rank >= count || !fake::bound) return fake::NCCL_INVALID_ARGUMENT;
    auto &ranks = fake::by_id[id.internal];
    if (!ranks) ranks = std::make_shared<fake::Ranks>(fake::Ranks{count, 0, {}, {}, id.internal[0] == '/' ? id.internal : ""});
    const int device = fake::bound - 1;
    const char *together = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const bool twice = std::count(ranks->devices.begin(), ranks->devices.end(), device);
    if (ranks->count != count || (twice && !(together && !strcmp(together, "1")))) return fake::NCCL_INVALID_USAGE;
    ranks->joined++, ranks->devices.push_back(device);
    if (!ranks->folder.empty()) {
        mkdir(ranks->folder.c_str(), 0700);
        fake::bring(ranks->folder + "/joined." + std::to_string(rank), {});
    }
    fake::comms_made++, fake::comms_left++;
    *comm = new fake::CommHandle(std::make_shared<fake::Comm>(fake::Comm{ranks, rank, device}));
    if (ranks->joined == count) fake::by_id.erase(id.internal);
    return fake::NCCL_IN_PROGRESS;
}
int ncclCommGetAsyncError(void *handle, int *error) {
    LOCKED;
    const fake::Comm &comm = **(fake::CommHandle *)handle;
    *error = comm.error ? comm.error : !comm.ranks->all_here() ? (int)fake::NCCL_IN_PROGRESS : 0;
    return 0;
}
const char *ncclGetLastError(void *) { return "as planted"; }
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) {
    return op ? (int)fake::NCCL_INVALID_ARGUMENT : fake::collective(fake::REDUCES, from, to, count, type, comm, stream);
}
int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
    return fake::collective(fake::GATHERS, from, to, count, type, comm, stream);
}
int ncclCommAbort(void *comm) { fake::end(comm); return 0; }
} // extern "C"
