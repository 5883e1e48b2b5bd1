// Replays launch plans on shared buffers and times them. Only our own host code runs here; a candidate is present as device
// code alone. One process serves one candidate: whatever its kernels do to the context ends with it.
//
//   runner SOCKET
//
// Each command is a `Command`, the numbers of the sets it is about and, for each of them, the touches that come just before
// its call (history.h); the reply is a `Reply` and `length` bytes: an error's text, or the seconds of single calls or of
// turns. LOAD brings file descriptors with it: a file with the cubin and the packed plans (plan.py), and the buffers'
// memory. They go into the first of two slots; BESIDE puts edits of the kernel there into the second, one after the other:
// a file with an edited cubin, launched as the first is, or none where the last one is loaded anew.
// Single calls are timed through the library of exported kernels, where the file holds a recipe: as a user's would be.
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "cudal2.h"
#include "history.h"
#include "range.h"
#include "replay.h"

enum { LOAD = 1, RUN = 2, HOST = 3, TURNS = 4, BESIDE = 5, RESERVE = 6 };
enum { KEPT = 0, BEFORE = 1, BEHIND = 2 };  // BESIDE: the first kernel stays loaded; or both anew, it before or behind
// TURNS: marks at the number of a set, that its plan is the second slot's, and that a turn begins with it
constexpr uint32_t SECOND = 1u << 31, BEGINS = 1u << 30;
struct Command {
    uint32_t what, count, touches, order;  // RUN and HOST: touches of a call; BESIDE: which of the two is loaded first
    uint64_t bytes, base, seed;  // LOAD: of the buffers; RESERVE: where these will begin; HOST: of the gaps
    double gap;  // HOST: mean seconds between calls, 0 for none
};
struct Reply {
    int32_t status;  // 0, the driver's error, -1 where the runner itself failed, or -2 where its addresses are taken
    uint32_t length;
    double device, host;  // RUN: seconds on the device's clock and on the host's
};

static CUdevice device;
static CUstream stream;
static Ours ours;
static std::vector<CUevent> marks;  // between turns
struct Slot {
    std::string cubin;
    Plans plans;  // the second's take their parameters from the first's
};
static Slot slots[2];
static cudal2_kernel* exported;  // of the first slot, where there is a recipe
static std::vector<Place> places;  // of every set, for it

static void map_buffers(int file, size_t bytes) try {
    CUmemGenericAllocationHandle memory;
    CHECK(cuMemImportFromShareableHandle(&memory, (void*)(uintptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(cuMemMap(BASE, bytes, 0, memory, 0));
    allow_access(device, bytes);
} catch (const DriverError& error) {
    throw std::runtime_error(error.what());  // no fault of the candidate's
}

static void check_exported(int code) {
    if (code > 0) throw DriverError((CUresult)code, cudal2_message());
    if (code) throw std::runtime_error(cudal2_message());
}

// What stands behind the plans. The cubin's length, eight bytes before it, was looked at with them.
static void load_recipe(Reader in, const char* cubin) {
    uint64_t cubin_size;
    memcpy(&cubin_size, cubin - sizeof cubin_size, sizeof cubin_size);
    const uint32_t size = in.take<uint32_t>();
    const char* recipe = in.bytes(size);
    exported = nullptr;
    places.clear();
    if (!size) return;
    const uint32_t addresses = in.take<uint32_t>();
    if (!is_place(addresses)) throw std::runtime_error("a place has an impossible number of addresses");
    while (in.at < in.end) {
        places.emplace_back();
        for (uint32_t i = 0; i < addresses; ++i) places.back().push_back(in.take<uint64_t>());
    }
    size_t workspace;
    check_exported(cudal2_load(recipe, size, cubin, cubin_size, &exported, &workspace));
    check_exported(cudal2_prepare(exported));
}

static int launch_exported(const Place& at) {
    return cudal2_run(exported, (const void* const*)at.data(), at.size() - 1, 0, (void*)at.back(), stream);
}

static std::string contents(int file) {
    struct stat status;
    fstat(file, &status);
    std::string found(status.st_size, 0);
    const ssize_t got = pread(file, &found[0], found.size(), 0);
    close(file);
    if (got != status.st_size) throw std::runtime_error("cannot read what is to be loaded");
    return found;
}

static void load(const Command& command, int file, int memory) {
    if (memory >= 0) map_buffers(memory, command.bytes);
    const std::string data = contents(file);
    Reader in = {data.data(), data.data() + data.size()};
    const CUdeviceptr workspace = BASE + in.take<uint64_t>();
    const uint64_t size = in.take<uint64_t>();
    const char* cubin = in.bytes(size);
    slots[0] = {std::string(cubin, size), read_plans(in, cubin, workspace)};
    load_recipe(in, cubin);
}

static void unload(Slot& slot) {
    if (slot.plans.module) CHECK(cuModuleUnload(slot.plans.module));
    slot.plans.module = nullptr;
}

// Two loads of one kernel may differ in speed for as long as they stay: so each may be loaded first.
static void load_beside(uint32_t order, int file) {
    Slot &first = slots[0], &second = slots[1];
    if (file >= 0) second.cubin = contents(file);
    if (second.plans.plans.empty()) second.plans = {nullptr, first.plans.names, first.plans.plans};
    unload(second);
    if (order != KEPT) unload(first);
    if (order == BEFORE) load_kernels(first.plans, first.cubin.data());
    load_kernels(second.plans, second.cubin.data());
    if (order == BEHIND) load_kernels(first.plans, first.cubin.data());
}

// The plans of these sets, one after the other.
static CUgraphExec built(const Plans& slot, const std::vector<uint32_t>& sets, const std::vector<Touch>& touches) {
    return build(ours, sets.size(), touches.size() / sets.size(), touches.data(),
        [&](CUgraph graph, size_t i, CUgraphNode last) {
            for (const auto& node : slot.plans.at(sets[i])) last = add(graph, node, last ? &last : nullptr);
            return last;
        });
}

static void run(const std::vector<uint32_t>& sets, const std::vector<Touch>& touches, Reply& reply) {
    const CUgraphExec graph = built(slots[0].plans, sets, touches);
    ours.replay(graph, stream, reply.device, reply.host);
    CHECK(cuGraphExecDestroy(graph));
}

// Turn after turn behind one spin, each with the plans of one slot: seconds of each on the device's clock.
static std::vector<double> turns(const std::vector<uint32_t>& calls) {
    std::vector<CUgraphExec> graphs;
    for (size_t start = 0, stop = 0; start < calls.size(); start = stop) {
        std::vector<uint32_t> sets;
        do sets.push_back(calls[stop] & ~(SECOND | BEGINS));
        while (++stop < calls.size() && !(calls[stop] & BEGINS));
        graphs.push_back(built(slots[calls[start] & SECOND ? 1 : 0].plans, sets, {}));
        CHECK(cuGraphUpload(graphs.back(), stream));
    }
    while (marks.size() <= graphs.size()) {
        marks.push_back(nullptr);
        CHECK(cuEventCreate(&marks.back(), CU_EVENT_DEFAULT));
    }
    CHECK(cuStreamSynchronize(stream));
    ours.spin_now(stream);
    CHECK(cuEventRecord(marks[0], stream));
    for (size_t i = 0; i < graphs.size(); ++i) {
        CHECK(cuGraphLaunch(graphs[i], stream));
        CHECK(cuEventRecord(marks[i + 1], stream));
    }
    CHECK(cuStreamSynchronize(stream));
    std::vector<double> seconds;
    for (size_t i = 0; i < graphs.size(); ++i) {
        float milliseconds = 0;
        CHECK(cuEventElapsedTime(&milliseconds, marks[i], marks[i + 1]));
        seconds.push_back(1e-3 * milliseconds);
        CHECK(cuGraphExecDestroy(graphs[i]));
    }
    return seconds;
}

// Single calls on the host's clock: launch, wait, and between calls idle for an exponentially distributed while.
// The GPU turns to this process before the first: where there are few sets, that would be much of the figure.
// Touches are written outside the time.
static std::vector<double> host(
    const Command& command, const std::vector<uint32_t>& sets, const std::vector<Touch>& touches) {
    std::mt19937_64 random(command.seed);
    std::exponential_distribution<double> gap(command.gap > 0 ? 1 / command.gap : 1);
    std::vector<double> seconds;
    ours.spin_now(stream);
    CHECK(cuStreamSynchronize(stream));
    for (size_t i = 0; i < sets.size(); ++i) {
        if (command.gap > 0)
            for (const double until = now() + gap(random); now() < until;) {
                const double left = until - now() - 1e-4;  // sleep, then spin for the last of it
                if (left > 0) usleep((useconds_t)(left * 1e6));
            }
        if (command.touches) ours.touch_now(&touches[i * command.touches], command.touches, stream);
        const Plan& plan = slots[0].plans.plans.at(sets[i]);
        const Place* at = exported ? &places.at(sets[i]) : nullptr;
        const double start = now();
        if (exported) check_exported(launch_exported(*at));
        else for (const auto& node : plan) launch(node, stream);
        CHECK(cuStreamSynchronize(stream));
        seconds.push_back(now() - start);
    }
    return seconds;
}

static bool receive(int socket, Command& command, int files[2]) {
    char control[CMSG_SPACE(2 * sizeof(int))];
    iovec part = {&command, sizeof command};
    msghdr message = {};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    if (recvmsg(socket, &message, MSG_WAITALL) != sizeof command) return false;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS) memcpy(files, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    return true;
}

template <class T>
static std::vector<T> receive(int socket, size_t count) {
    std::vector<T> items(count);
    if (count && recv(socket, items.data(), count * sizeof(T), MSG_WAITALL) != (ssize_t)(count * sizeof(T))) _exit(1);
    return items;
}

static void answer(int socket, Reply reply, const void* data, size_t length) {
    reply.length = length;
    if (send(socket, &reply, sizeof reply, MSG_NOSIGNAL) < 0) _exit(1);
    for (size_t done = 0; done < length;) {
        const ssize_t part = send(socket, (const char*)data + done, length - done, MSG_NOSIGNAL);
        if (part <= 0) _exit(1);
        done += part;
    }
}

static void set_up_device() {
    device = open_device();
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ours.load();
}

int main(int count, char** argument) {
    if (count != 2) return 2;
    const int socket = atoi(argument[1]);
    Command command = {};
    do {
        Reply reply = {};
        std::string text;
        std::vector<double> seconds;
        int files[2] = {-1, -1};
        try {
            if (!stream) {
                set_up_device();  // answered without a command: ready
            } else {
                if (!receive(socket, command, files)) break;
                const auto sets = receive<uint32_t>(socket, command.count);
                auto touches = receive<Touch>(socket, (size_t)command.count * command.touches);
                for (auto& one : touches) one.where += BASE, one.source += one.source ? BASE : 0;
                if (command.what == RESERVE) reserve_range(command.base);
                else if (command.what == LOAD) load(command, files[0], files[1]);
                else if (command.what == RUN) run(sets, touches, reply);
                else if (command.what == TURNS) seconds = turns(sets);
                else if (command.what == BESIDE) load_beside(command.order, files[0]);
                else seconds = host(command, sets, touches);
            }
        } catch (const DriverError& error) {
            reply.status = error.code;
            text = error.what();
        } catch (const Taken& error) {
            reply.status = -2;
            text = error.what();
        } catch (const std::exception& error) {
            reply.status = -1;
            text = error.what();
        }
        if (reply.status) answer(socket, reply, text.data(), text.size());
        else answer(socket, reply, seconds.data(), seconds.size() * sizeof(double));
        if (reply.status) break;  // the context may be spoilt; the parent starts another process
    } while (true);
    _exit(0);
}
