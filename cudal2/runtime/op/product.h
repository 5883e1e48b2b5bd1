// A product by a kernel of a table, or the reason why none can give it. All of a call's hot path is here.
#pragma once
#include <cstring>
#include <memory>
#include <optional>

#include "table.h"

// A tensor that is given up at the end. As torch hands tensors over: a class with a count of its own costs more than all
// that is asked of it here.
struct GiveUp {
    void operator()(AtenTensorHandle tensor) const { aoti_torch_delete_tensor_object(tensor); }
};
using Owned = std::unique_ptr<AtenTensorOpaque, GiveUp>;

struct Operand {
    AtenTensorHandle handle;
    int64_t dim, numel, *sizes, *strides;
    const char* data;
    int32_t dtype, type, index;

    explicit Operand(AtenTensorHandle handle) : handle(handle) {
        const void* address = nullptr;
        const bool known = !aoti_torch_get_dim(handle, &dim) && !aoti_torch_get_numel(handle, &numel) &&
            !aoti_torch_get_sizes(handle, &sizes) && !aoti_torch_get_strides(handle, &strides) &&
            !aoti_torch_get_dtype(handle, &dtype) && !aoti_torch_get_device_type(handle, &type) &&
            !aoti_torch_get_device_index(handle, &index) && !torch_get_const_data_ptr(handle, &address);
        STD_TORCH_CHECK(known, "cudal2: torch does not tell of a tensor");
        data = (const char*)address;
    }

    // Whether its storage holds all of it: it may have been taken away, as from a sharded parameter between two uses.
    bool in_memory(int64_t span) const {
        int64_t bytes = 0, offset = 0;
        return data && !aoti_torch_get_storage_size(handle, &bytes) &&
            !aoti_torch_get_storage_offset(handle, &offset) && (offset + span) * 2 <= bytes;
    }
};

inline void* address(const Owned& tensor) {
    void* found = nullptr;
    STD_TORCH_CHECK(!torch_get_mutable_data_ptr(tensor.get(), &found), "cudal2: torch does not tell where a tensor lies");
    return found;
}

using Sizes = std::array<int64_t, 16>;

inline Sizes dense(const int64_t* sizes, int64_t dim) {
    Sizes strides;
    for (int64_t i = dim, step = 1; i-- > 0; step *= sizes[i]) strides[i] = step;
    return strides;
}

inline Owned empty(const int64_t* sizes, int64_t dim, int32_t dtype, int32_t type, int32_t index) {
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_empty_strided(dim, sizes, dense(sizes, dim).data(), dtype, type, index, &made));
    return Owned(made);
}

// The first elements of `whole`, as a tensor of their own that keeps its memory: to torch it is no view.
inline Owned beginning(const Owned& whole, const Sizes& sizes, int64_t dim) {
    AtenTensorHandle made = nullptr;
    const Sizes strides = dense(sizes.data(), dim);
    TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(whole.get(), dim, sizes.data(), strides.data(), 0, &made));
    return Owned(made);
}

// Memory for as many rows as the kernel reads, where A has fewer: they are copied there, and what is behind them stays as
// it is. No row of a product depends on another row of A (`cudal2 bench call --neighbours` looks), and none behind A's is
// shown. That memory is torch's, on the current stream or in a graph; it may be given up as soon as the call is enqueued.
inline Owned more_rows(const Problem& p, const Operand& a) {
    if (a.numel == p.m * p.k) return nullptr;
    const int64_t sizes[] = {p.m, p.k};
    return empty(sizes, 2, a.dtype, a.type, a.index);
}

// At least so many bytes for a captured call, from the graph's memory, zero at the head.
inline Owned own_workspace(const Table& table, int64_t bytes, const Operand& a) {
    static const int32_t uint8 = aoti_torch_dtype_uint8();
    const int64_t size = std::max(bytes, table.place.semaphores);
    Owned made = empty(&size, 1, uint8, a.type, a.index);
    AtenTensorHandle head = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_aten_narrow(made.get(), 0, 0, table.place.semaphores, &head));
    const Owned owned(head);
    TORCH_ERROR_CODE_CHECK(aoti_torch_zero_(head));
    return made;
}

inline thread_local const Kernel* on_trial = nullptr;

// Whether calls on that stream are recorded into a graph; below 0 if the driver does not tell.
inline int recorded(const Place& place, int32_t index) {
    std::optional<torch::stable::accelerator::DeviceGuard> there;
    int32_t current = index;
    if (index >= 0 && !aoti_torch_get_current_device_index(&current) && current != index) there.emplace(index);
    void* stream = nullptr;
    return place.stream(index, &stream) ? -1 : place.capturing(stream);
}

constexpr int MOST_FAILURES = 3;  // a trial that finds no memory is not repeated at every call

// SERVED if a kernel may serve a call: it gave torch's product once on that device, which is found out now if it was
// not. Nothing is tried while a graph is recorded: torch serves such calls until the kernel was called outside.
inline Outcome tried(Table& table, const Kernel& kernel, const Problem& p, const Operand& a) {
    if (!(table.trial || table.try_kernel) || on_trial == &kernel) return SERVED;
    if (kernel.wrong.load(std::memory_order_relaxed)) return NOT_RIGHT;
    const uint64_t here = 1ull << (a.index < 0 ? 0 : a.index);
    if (kernel.right.load(std::memory_order_relaxed) & here) return SERVED;
    if (on_trial || kernel.failures.load(std::memory_order_relaxed) >= MOST_FAILURES) return UNTRIED;
    if (const int graph = table.place.launched ? recorded(table.place, a.index) : 0)
        return graph < 0 ? not_launched(table) : UNTRIED;
    if (kernel.busy.fetch_or(here) & here) return UNTRIED;
    on_trial = &kernel;
    const int found = table.try_kernel ? table.try_kernel(kernel.number, a.index)
                                       : table.trial(p.m, p.n, p.k, p.tn, a.index);
    on_trial = nullptr;
    if (found > 0) kernel.right |= here;
    if (!found) kernel.wrong = true;
    if (found < 0) ++kernel.failures;
    kernel.busy &= ~here;
    return found > 0 ? SERVED : found ? UNTRIED : NOT_RIGHT;
}

// What a kernel is given besides A, which may be padded: B, the bias if it adds one, C.
struct Given {
    const void *b, *bias;
    void* c;
};

// Enqueues a call; whether the launcher failed.
inline int enqueue(
    const Table& table, const Kernel& kernel, const Problem& p, const void* a, const Given& given, void* workspace,
    void* stream) {
    if (!table.run) return table.place.launch(kernel.code, a, given.b, given.c, workspace, stream);
    const void* all[] = {a, given.b, p.biased ? given.bias : given.c, given.c};
    return table.run(kernel.code, all, 3 + p.biased, p.m, workspace, stream);
}

inline Outcome launch(Table& table, const Kernel& kernel, const Problem& p, const Operand& a, const Given& given) {
    const Place& place = table.place;
    std::optional<torch::stable::accelerator::DeviceGuard> there;
    int32_t current = a.index;
    if (a.index >= 0 && !aoti_torch_get_current_device_index(&current) && current != a.index) there.emplace(a.index);
    void* stream = nullptr;
    if (place.stream(a.index, &stream)) return NOT_LAUNCHED;  // torch will say why
    int64_t bytes = kernel.workspace.load(std::memory_order_relaxed);
    if (bytes < 0) {
        size_t found = 0;
        if (place.needs(kernel.code, a.data, &found)) return not_launched(table);
        kernel.workspace = bytes = found;
    }
    const Owned rows = more_rows(p, a);
    const void* left = rows ? address(rows) : a.data;
    if (rows && table.copy(address(rows), a.data, 2 * a.numel, stream)) return not_launched(table);
    if (!bytes) return enqueue(table, kernel, p, left, given, nullptr, stream) ? not_launched(table) : SERVED;

    const int capturing = place.capturing(stream);
    if (capturing < 0) return not_launched(table);
    if (capturing) {
        // It may be replayed on any stream at any time.
        const Owned own = own_workspace(table, bytes, a);
        return enqueue(table, kernel, p, left, given, address(own), stream) ? not_launched(table) : SERVED;
    }
    const std::lock_guard<std::mutex> turn(table.turns);
    Workspace& shared = table.workspaces[{a.index, stream}];
    // A smaller one stays, for what is still to run on it; doubled, all of them together take little more than the last.
    if (shared.bytes < bytes) shared = {nullptr, std::max(bytes, 2 * shared.bytes), false};
    if (!shared.clean && place.workspace(a.data, shared.bytes, stream, &shared.memory)) return not_launched(table);
    shared.clean = !enqueue(table, kernel, p, left, given, shared.memory, stream);
    return shared.clean ? SERVED : not_launched(table);  // what it did enqueue may leave semaphores behind
}

// Whether a processor's kernels were measured with another number of threads.
inline bool other_threads(const Place& place) {
    uint32_t threads = 0;
    return torch_get_num_threads(&threads) || (place.threads && (int)threads != place.threads);
}

inline Outcome run_here(const Kernel& kernel, const Problem& p, const Operand& a, const Given& given) {
    static thread_local Owned scratch;  // two threads may call a kernel at once
    static thread_local int64_t bytes = 0;
    static const int32_t uint8 = aoti_torch_dtype_uint8();
    const int64_t wanted = std::max<int64_t>(kernel.workspace, 1);
    if (bytes < wanted) scratch = empty(&wanted, 1, uint8, a.type, a.index), bytes = wanted;
    const Owned rows = more_rows(p, a);
    if (rows) memcpy(address(rows), a.data, 2 * a.numel);
    const void* left = rows ? address(rows) : a.data;
    using Product = int(const void*, const void*, void*, int, int, int, void*);
    using Biased = int(const void*, const void*, const void*, void*, int, int, int, void*);
    const int code = p.biased
        ? ((Biased*)kernel.code)(left, given.b, given.bias, given.c, p.m, p.n, p.k, address(scratch))
        : ((Product*)kernel.code)(left, given.b, given.c, p.m, p.n, p.k, address(scratch));
    return code ? REFUSED : SERVED;
}

// Why no bias of this kind can be added to a product, or SERVED.
inline Outcome check_bias(const Place& place, const Operand& bias, const Operand& a, int64_t n, bool within) {
    if (!within && place.launched) return A_BIAS;  // torch adds it within its own kernel: ours would be one more pass over C
    if (bias.dtype != a.dtype) return NOT_HALF;
    if (bias.type != a.type || bias.index != a.index) return SEVERAL_DEVICES;
    if (bias.dim != 1 || bias.sizes[0] != n) return BAD_BIAS;
    if (!bias.in_memory((n - 1) * bias.strides[0] + 1)) return NO_MEMORY;
    if (!within) return SERVED;
    if (bias.strides[0] != 1) return NOT_CONTIGUOUS;
    return (uintptr_t)bias.data % place.alignment ? NOT_ALIGNED : SERVED;
}

// A times B, or A times B transposed, into `out`. What it does not serve, it does not touch. With `within`, by a kernel
// that adds the bias, too; else without the bias, which a caller adds.
inline Outcome product(
    Table& table, AtenTensorHandle left, AtenTensorHandle right, AtenTensorHandle bias, bool transposed, bool within,
    Owned& out) {
    static const int32_t half = aoti_torch_dtype_float16(), brain = aoti_torch_dtype_bfloat16();
    const Place& place = table.place;
    const Operand a(left), b(right);
    if (a.dtype != b.dtype || (a.dtype != half && a.dtype != brain)) return NOT_HALF;
    if (a.dtype == brain && !table.brain) return NOT_HALF;
    if (a.type != place.device_type || !(place.devices >> (a.index < 0 ? 0 : a.index) & 1)) return OTHER_DEVICE;
    if (b.type != a.type || b.index != a.index) return SEVERAL_DEVICES;
    if (b.dim != 2 || a.dim < 2 || a.dim > 16 || a.sizes[a.dim - 1] != b.sizes[transposed]) return NO_MATRICES;
    const int64_t k = a.sizes[a.dim - 1], n = b.sizes[!transposed];
    const int64_t down = b.strides[transposed], across = b.strides[!transposed];
    const bool tn = down == 1 && across == k;
    bool contiguous = false;
    if ((!tn && !(down == n && across == 1)) || aoti_torch_is_contiguous(left, &contiguous) || !contiguous)
        return NOT_CONTIGUOUS;
    Problem problem = {k ? a.numel / k : 0, n, k, tn, a.dtype, within};
    const Kernel* kernel = find_kernel(table, problem);
    if (!kernel) return NO_KERNEL;
    const void* added = nullptr;
    if (bias) {
        const Operand row(bias);
        if (const Outcome wrong = check_bias(place, row, a, n, within)) return wrong;
        added = row.data;
    }
    if (!a.in_memory(a.numel) || !b.in_memory(b.numel)) return NO_MEMORY;
    if ((uintptr_t)a.data % place.alignment || (uintptr_t)b.data % place.alignment) return NOT_ALIGNED;
    if (!place.launched && other_threads(place)) return OTHER_THREADS;
    if (const Outcome not_yet = tried(table, *kernel, problem, a)) return not_yet;

    Sizes sizes;
    std::copy(a.sizes, a.sizes + a.dim, sizes.begin());
    sizes[a.dim - 1] = n;
    const bool padded = a.numel != problem.m * k;
    const int64_t whole[] = {problem.m, n};
    try {
        Owned c = padded ? empty(whole, 2, a.dtype, a.type, a.index) : empty(sizes.data(), a.dim, a.dtype, a.type, a.index);
        const Given given = {b.data, added, address(c)};
        const Outcome outcome = place.launched ? launch(table, *kernel, problem, a, given)
                                               : run_here(*kernel, problem, a, given);
        if (outcome != SERVED) return outcome;
        out = padded ? beginning(c, sizes, a.dim) : std::move(c);
        return padded ? PADDED : SERVED;
    } catch (const std::exception&) {
        if (padded) return NO_MEMORY;  // for so many rows; torch needs less
        throw;
    }
}
