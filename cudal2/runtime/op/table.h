// What the ops look kernels up in: the kernels of one exported folder by their problem, and how they are called.
//
// Python fills a table when a folder is loaded (cudal2/exported/op.py) and never changes it then. It stays for ever: a call
// may be under way in any thread.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

// Where a folder's kernels run. Mirrored field by field in op.py.
struct Place {
    int64_t id;
    int32_t launched;     // kernels are handles of libcudal2.so; else functions of the processor
    int32_t device_type;  // as torch numbers them
    uint64_t devices;     // a bit for each index; a processor is 0
    int32_t threads;      // the processor's: what was measured, 0 for any
    int32_t alignment;    // bytes
    int64_t semaphores;   // bytes of workspace that are zero between calls
    int (*stream)(int32_t device, void** stream);
    int (*needs)(void* kernel, const void* a, size_t* workspace);
    int (*launch)(void* kernel, const void* a, const void* b, void* c, void* workspace, void* stream);
    int (*capturing)(void* stream);
    int (*workspace)(const void* a, size_t bytes, void* stream, void** workspace);
    const char* (*message)();  // what went wrong in this thread's last call
};

// What became of a call. The texts stand in op.py, in this order; PADDED was served by a kernel of more rows.
enum Outcome {
    SERVED, NOT_HALF, OTHER_DEVICE, SEVERAL_DEVICES, NO_MATRICES, NOT_CONTIGUOUS, NO_KERNEL, A_BIAS, BAD_BIAS, NO_MEMORY,
    NOT_ALIGNED, OTHER_THREADS, REFUSED, NOT_LAUNCHED, TORCHS_BUSINESS, PADDED, UNTRIED, NOT_RIGHT, OUTCOMES
};

// The number types that kernels may be for, by the name that a problem has for each; all take two bytes.
inline int32_t type_number(const std::string& name) {
    if (name == "fp16") return aoti_torch_dtype_float16();
    if (name == "bf16") return aoti_torch_dtype_bfloat16();
    return -1;
}

struct Problem {
    int64_t m, n, k;
    bool tn;
    int32_t type;  // as torch numbers them
    bool biased;   // the kernel itself adds a bias to each row
    bool operator==(const Problem& other) const {
        return m == other.m && n == other.n && k == other.k && tn == other.tn && type == other.type &&
            biased == other.biased;
    }
};
struct Hash {
    size_t operator()(const Problem& p) const {
        uint64_t mixed = 0;
        for (const uint64_t one : {(uint64_t)p.m, (uint64_t)p.n, (uint64_t)p.k, (uint64_t)(p.type << 2 | p.biased << 1 | p.tn)})
            mixed = (mixed ^ one) * 0x9e3779b97f4a7c15u, mixed ^= mixed >> 32;
        return mixed;
    }
};

struct Kernel {
    void* code;  // a handle, or a function
    mutable std::atomic<int64_t> workspace;  // bytes; -1: not asked for yet
    mutable std::atomic<uint64_t> right{0};  // devices on which it was tried and gave torch's product, a bit for each index
    mutable std::atomic<uint64_t> busy{0};   // devices on which a thread tries it at the moment
    mutable std::atomic<bool> wrong{false};  // it was tried and gave something else
    mutable std::atomic<int> failures{0};    // how often it could not be tried
    const int64_t number;                    // of those that were added
    Kernel(void* code, int64_t workspace, int64_t number) : code(code), workspace(workspace), number(number) {}
};

// A kernel that also serves inputs of fewer rows than its own, from `fewest` on.
struct Neighbour {
    int64_t m, fewest;
    const Kernel* kernel;
};

// Not of torch's allocator: what torch.compile runs before it captures a graph may leave none of its memory in use.
struct Workspace {
    void* memory = nullptr;
    int64_t bytes = 0;
    bool clean = false;  // its semaphores are zero
};

struct Table {
    const Place place;
    std::deque<Kernel> added;
    std::unordered_map<Problem, const Kernel*, Hash> kernels;  // one kernel may serve several numbers of rows
    std::unordered_map<Problem, std::vector<Neighbour>, Hash> neighbours;  // by a problem of 0 rows, small m first
    int (*copy)(void* to, const void* from, size_t bytes, void* stream) = nullptr;  // on a device that is launched on
    // Tries a kernel once, by a call of its problem in this thread: 1 it is right (or says itself why it cannot serve),
    // 0 it is wrong, -1 it could not be tried now. Null where nobody asked for that.
    int (*trial)(int64_t m, int64_t n, int64_t k, int tn, int32_t device) = nullptr;
    int (*try_kernel)(int64_t number, int32_t device) = nullptr;  // the same by the kernel's number, for all of its rows
    // Launches a kernel for M rows: A, B, what else it is given, C. Null where all take A, B and C, for one M.
    int (*run)(void* kernel, const void* const* operands, int count, int m, void* workspace, void* stream) = nullptr;
    std::array<std::atomic<int64_t>, OUTCOMES> outcomes = {};
    bool brain = false, biased = false;  // some kernel is for bf16; adds a bias
    std::mutex turns;  // the launches of two threads on one stream must not mix: they share its workspace
    std::map<std::pair<int32_t, void*>, Workspace> workspaces;  // by device and stream
    Table* next = nullptr;
    std::atomic<bool> told{false};
    explicit Table(const Place& place) : place(place) {}
};

// The kernel for a problem, which becomes the kernel's own: of as many rows or, where there is none, the smallest of more
// rows that serves so few. Null where there is neither.
inline const Kernel* find_kernel(const Table& table, Problem& problem) {
    const auto exact = table.kernels.find(problem);
    if (exact != table.kernels.end()) return exact->second;
    if (table.neighbours.empty()) return nullptr;
    const auto near = table.neighbours.find({0, problem.n, problem.k, problem.tn, problem.type, problem.biased});
    if (near == table.neighbours.end()) return nullptr;
    for (const Neighbour& one : near->second) {
        if (one.fewest > problem.m || problem.m > one.m) continue;
        problem.m = one.m;
        return one.kernel;
    }
    return nullptr;
}

// That a launch failed; in words the first time only, for it will be so at every call.
inline Outcome not_launched(Table& table) {
    if (!table.told.exchange(true)) {
        const std::string text = std::string("cudal2: a kernel cannot be launched, torch serves its calls: ") + table.place.message();
        aoti_torch_warn(__func__, __FILE__, __LINE__, text.c_str());
    }
    return NOT_LAUNCHED;
}

inline std::atomic<Table*> newest{nullptr};    // a list of all
inline std::atomic<Table*> standard{nullptr};  // what id 0 means

inline Table* find_table(int64_t id) {
    if (!id) return standard.load(std::memory_order_acquire);
    Table* table = newest.load(std::memory_order_acquire);
    while (table && table->place.id != id) table = table->next;
    return table;
}
