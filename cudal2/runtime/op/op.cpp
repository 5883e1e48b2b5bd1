// torch.ops.cudal2: products of matrices in fp16 and bf16 by the kernels of an exported folder, where one is faster; all
// else is torch's. Built against libtorch's stable ABI: one build serves torch 2.11 and later, with CUDA or without.
//
//   linear, matmul   what torch.nn.functional.linear and torch.matmul give, autograd included
//   product          either of them without autograd: what stays in a compiled graph
//   attempt_...      either without autograd and bias, or nothing where torch is to serve the call: for callers that know
//                    of no derivatives and have torch at hand; attempt_biased is linear with the bias, by one kernel
//
// `library` is the id of a table, 0 the one made the standard.
#define TORCH_TARGET_VERSION ((2ULL << 56) | (11ULL << 48))
#include <algorithm>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "product.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace {

using torch::stable::Tensor;
using Bias = std::optional<Tensor>;
using torch::stable::detail::from;
using torch::stable::detail::to;

// Calls an operator of torch's; its results are in `stack`. Throws what torch says is wrong, where it is asked (2.13).
template <size_t N>
void call(const char* name, std::array<StableIValue, N>& stack) {
    if (!torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION)) return;
    const bool tells = torch_exception_get_what_without_backtrace;
    throw std::runtime_error(tells ? torch_exception_get_what_without_backtrace() : std::string(name) + " failed");
}

template <size_t N>
Tensor dispatched(const char* name, std::array<StableIValue, N> stack) {
    call(name, stack);
    return to<Tensor>(stack[0]);
}

Tensor torchs(const Tensor& a, const Tensor& b, const Bias& bias, bool transposed) {
    if (transposed) return dispatched<3>("aten::linear", {from(a), from(b), from(bias)});
    return dispatched<2>("aten::matmul", {from(a), from(b)});
}

// The product, or nothing. `within`: its kernel adds the bias; else `bias` only says whether one may be added.
Owned attempted(
    AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle bias, bool transposed, bool within, int64_t library) {
    Owned found;
    if (Table* table = find_table(library)) {
        const bool counts = !on_trial;
        const Outcome outcome = product(*table, a, b, bias, transposed, within, found);
        if (counts) ++table->outcomes[outcome];
    }
    return found;
}

// The callers' hot path: as torch hands over arguments and takes results, which are released from here to there. A tensor
// that is not defined is Python's None.
template <bool TRANSPOSED, bool WITHIN, bool HERE>
void attempt(StableIValue* stack, uint64_t, uint64_t) {
    const Owned a(to<AtenTensorHandle>(stack[0])), b(to<AtenTensorHandle>(stack[1]));
    const Owned within(WITHIN ? to<AtenTensorHandle>(stack[2]) : nullptr);
    const auto library = to<int64_t>(stack[WITHIN ? 3 : 2]);
    const Bias bias = TRANSPOSED && !WITHIN ? to<Bias>(stack[3]) : Bias();
    Owned found;
    if (HERE) found = attempted(a.get(), b.get(), bias ? bias->get() : within.get(), TRANSPOSED, WITHIN, library);
    else if (Table* table = find_table(library)) ++table->outcomes[TORCHS_BUSINESS];
    AtenTensorHandle out = found.release();
    if (!out) TORCH_ERROR_CODE_CHECK(aoti_torch_new_uninitialized_tensor(&out));
    stack[0] = torch::stable::detail::from(out);
}

// A bias is its kernel's or torch's: there is no addition in the stable ABI.
Tensor plain_product(const Tensor& a, const Tensor& b, const Bias& bias, bool transposed, int64_t library) {
    const Table* table = bias ? find_table(library) : nullptr;
    Owned found;
    if (!bias || (transposed && table && table->biased))
        found = attempted(a.get(), b.get(), bias ? bias->get() : nullptr, transposed, bool(bias), library);
    else if (Table* counting = find_table(library)) ++counting->outcomes[A_BIAS];
    return found ? Tensor(found.release()) : torchs(a, b, bias, transposed);
}
Tensor linear(const Tensor& x, const Tensor& weight, const Bias& bias, int64_t library) {
    return plain_product(x, weight, bias, true, library);
}
Tensor matmul(const Tensor& a, const Tensor& b, int64_t library) { return plain_product(a, b, {}, false, library); }

Tensor torchs_product(const Tensor& a, const Tensor& b, const Bias& bias, bool transposed, int64_t) {
    return torchs(a, b, bias, transposed);
}
Tensor torchs_linear(const Tensor& x, const Tensor& weight, const Bias& bias, int64_t) {
    return torchs(x, weight, bias, true);
}
Tensor torchs_matmul(const Tensor& a, const Tensor& b, int64_t) { return torchs(a, b, {}, false); }

// Whether derivatives flow through it, backward or forward, or may for all that can be told. The stable ABI has no question
// for that; a view of a tensor that wants gradients is no leaf.
bool differentiable(const Tensor& tensor) {
    int32_t layout = -1;
    if (aoti_torch_get_layout(tensor.get(), &layout) || layout != aoti_torch_layout_strided()) return true;  // has no views
    std::array<StableIValue, 2> parts = {from(tensor), from((int64_t)0)};
    call("aten::_unpack_dual", parts);
    const Tensor primal = to<Tensor>(parts[0]), tangent = to<Tensor>(parts[1]);
    std::array<StableIValue, 1> leaf = {from(primal)};
    call("aten::is_leaf", leaf);
    return tangent.defined() || !to<bool>(leaf[0]);
}

// Above the backends: torch's own, with its derivatives, where any are wanted; else on to whatever is below.
Tensor derived(const Tensor& a, const Tensor& b, const Bias& bias, bool transposed, int64_t library) {
    if (aoti_torch_grad_mode_is_enabled() && (differentiable(b) || differentiable(a) || (bias && differentiable(*bias))))
        return torchs(a, b, bias, transposed);
    return dispatched<5>("cudal2::product", {from(a), from(b), from(bias), from(transposed), from(library)});
}
Tensor derived_linear(const Tensor& x, const Tensor& weight, const Bias& bias, int64_t library) {
    return derived(x, weight, bias, true, library);
}
Tensor derived_matmul(const Tensor& a, const Tensor& b, int64_t library) { return derived(a, b, {}, false, library); }

void here(torch::stable::detail::StableLibrary& m) {
    m.impl("linear", TORCH_BOX(&linear));
    m.impl("matmul", TORCH_BOX(&matmul));
    m.impl("product", TORCH_BOX(&plain_product));
    m.impl("attempt_linear", attempt<true, false, true>);
    m.impl("attempt_matmul", attempt<false, false, true>);
    m.impl("attempt_biased", attempt<true, true, true>);
}
void no_attempt(torch::stable::detail::StableLibrary& m) {
    m.impl("attempt_linear", attempt<true, false, false>);
    m.impl("attempt_matmul", attempt<false, false, false>);
    m.impl("attempt_biased", attempt<true, true, false>);
}
void elsewhere(torch::stable::detail::StableLibrary& m) {
    m.impl("linear", TORCH_BOX(&torchs_linear));
    m.impl("matmul", TORCH_BOX(&torchs_matmul));
    m.impl("product", TORCH_BOX(&torchs_product));
    no_attempt(m);
}

}  // namespace

STABLE_TORCH_LIBRARY(cudal2, m) {
    m.def("linear(Tensor input, Tensor weight, Tensor? bias=None, int library=0) -> Tensor");
    m.def("matmul(Tensor input, Tensor other, int library=0) -> Tensor");
    m.def("product(Tensor a, Tensor b, Tensor? bias, bool transposed, int library=0) -> Tensor");
    m.def("attempt_linear(Tensor input, Tensor weight, int library, Tensor? bias=None) -> Tensor");
    m.def("attempt_matmul(Tensor input, Tensor other, int library) -> Tensor");
    m.def("attempt_biased(Tensor input, Tensor weight, Tensor bias, int library) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(cudal2, CPU, m) { here(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, CUDA, m) { here(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, Autograd, m) {
    m.impl("linear", TORCH_BOX(&derived_linear));
    m.impl("matmul", TORCH_BOX(&derived_matmul));
}
// Every transform, mode and kind of tensor with a meaning of its own holds a key, which comes before those above; torch
// knows what its own functions are then.
STABLE_TORCH_LIBRARY_IMPL(cudal2, CompositeExplicitAutograd, m) { elsewhere(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, FuncTorchDynamicLayerFrontMode, m) { elsewhere(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, AutocastCPU, m) { elsewhere(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, AutocastCUDA, m) { elsewhere(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, Tracer, m) { elsewhere(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, Negative, m) { elsewhere(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, Conjugate, m) { elsewhere(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, ZeroTensor, m) { elsewhere(m); }
// A mode that sees operators, or makes a graph of them, is to see torch's.
STABLE_TORCH_LIBRARY_IMPL(cudal2, Python, m) { no_attempt(m); }
STABLE_TORCH_LIBRARY_IMPL(cudal2, PreDispatch, m) { no_attempt(m); }

// A new table; `cudal2_op_add` fills it, `cudal2_op_publish` shows it to calls.
EXPORTED void* cudal2_op_open(const Place* place) { return new Table(*place); }

// A kernel for these numbers of rows, tried once for all of them; 0 where its dtype is not known here. `workspace` is in
// bytes for any of them, -1 for what the launcher says.
EXPORTED int cudal2_op_serve(
    void* table, const int* rows, int count, int n, int k, int tn, const char* dtype, int biased, void* code,
    int64_t workspace) {
    Table& all = *(Table*)table;
    const int32_t type = type_number(dtype);
    if (type < 0) return 0;
    const Kernel& kernel = all.added.emplace_back(code, workspace, all.added.size());
    for (int i = 0; i < count; ++i) all.kernels.emplace(Problem{rows[i], n, k, tn != 0, type, biased != 0}, &kernel);
    all.brain = all.brain || type == aoti_torch_dtype_bfloat16();
    all.biased = all.biased || biased;
    return 1;
}

// How packages from before there were other types, biases and several numbers of rows say it.
EXPORTED void cudal2_op_add(void* table, int m, int n, int k, int tn, void* code, int64_t workspace) {
    cudal2_op_serve(table, &m, 1, n, k, tn, "fp16", 0, code, workspace);
}

// The kernel that serves m rows also serves inputs of fewer, from `fewest` (at least 1) on, padded. `copy` is for kernels
// that are launched.
EXPORTED void cudal2_op_fill_up(
    void* table, int m, int n, int k, int tn, const char* dtype, int biased, int fewest,
    int (*copy)(void*, const void*, size_t, void*)) {
    Table& all = *(Table*)table;
    const Problem problem = {m, n, k, tn != 0, type_number(dtype), biased != 0};
    auto& near = all.neighbours[Problem{0, n, k, tn != 0, problem.type, problem.biased}];
    const auto larger = std::find_if(near.begin(), near.end(), [&](const Neighbour& one) { return one.m > m; });
    near.insert(larger, {m, fewest, all.kernels.at(problem)});
    all.copy = copy;
}
EXPORTED void cudal2_op_pad(
    void* table, int m, int n, int k, int tn, int fewest, int (*copy)(void*, const void*, size_t, void*)) {
    cudal2_op_fill_up(table, m, n, k, tn, "fp16", 0, fewest, copy);
}

// Every kernel is tried by its number before it serves its first call on a device.
EXPORTED void cudal2_op_try_kernels(void* table, int (*trial)(int64_t, int32_t)) { ((Table*)table)->try_kernel = trial; }

// How kernels are launched that have several numbers of rows, or more operands than A, B and C.
EXPORTED void cudal2_op_run(void* table, int (*run)(void*, const void* const*, int, int, void*, void*)) {
    ((Table*)table)->run = run;
}

// Every kernel is tried by `trial` before it serves its first call on a device.
EXPORTED void cudal2_op_try(void* table, int (*trial)(int64_t, int64_t, int64_t, int, int32_t)) {
    ((Table*)table)->trial = trial;
}

EXPORTED void cudal2_op_publish(void* table) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> one_at_a_time(mutex);
    ((Table*)table)->next = newest.load();
    newest = (Table*)table;
}

EXPORTED void cudal2_op_standard(void* table) { standard = (Table*)table; }

EXPORTED int cudal2_op_known(int64_t id) { return find_table(id) != nullptr; }

// How often each outcome before PADDED was met: packages from before there was any have no room for more.
EXPORTED void cudal2_op_outcomes(void* table, int64_t* counts) {
    for (int i = 0; i < PADDED; ++i) counts[i] = ((Table*)table)->outcomes[i];
}

EXPORTED int64_t cudal2_op_padded(void* table) { return ((Table*)table)->outcomes[PADDED]; }

// The calls that torch served because a kernel was not tried yet, and because it was wrong.
EXPORTED void cudal2_op_tried(void* table, int64_t* counts) {
    for (int i = 0; i < 2; ++i) counts[i] = ((Table*)table)->outcomes[UNTRIED + i];
}

// Of this layout of Place; another library under the same name may be in the process already.
EXPORTED int cudal2_op_version(void) { return 1; }
