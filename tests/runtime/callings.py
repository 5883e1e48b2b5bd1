"""Ways to call a product out of the ordinary, and ordinary ones: each takes the function, x and w, and tells of it."""

from contextlib import nullcontext

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

M, N, K = 24, 40, 32


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


class Subclass(torch.Tensor):
    pass


def own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(Subclass)


def emptied(tensor: torch.Tensor) -> torch.Tensor:
    """As a sharded parameter is between two uses."""
    tensor.untyped_storage().resize_(0)
    return tensor


class Functions(TorchFunctionMode):
    """Writes down the functions it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Writes down the operators it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def under(mode, tell=lambda mode: None):
    """The call in that mode, and what the mode then tells."""

    def case(op, x, w):
        with mode() as active:
            found = op(x, w)
        return found, tell(active)

    return case


def dual(op, *operands, which):
    with forward_ad.dual_level():
        given = [forward_ad.make_dual(one, half(*one.shape)) if i == which else one for i, one in enumerate(operands)]
        return tuple(forward_ad.unpack_dual(op(*given)))


def gradients(op, *operands):
    for one in operands:
        one.requires_grad_()
    found = op(*operands)
    found.float().square().sum().backward()
    return found, [one.grad for one in operands]


def deterministic(op, x, w):
    torch.use_deterministic_algorithms(True)
    try:
        return op(x, w)
    finally:
        torch.use_deterministic_algorithms(False)


def default_device(op, x, w):
    torch.set_default_device("meta")
    try:
        return op(x, w)
    finally:
        torch.set_default_device(None)


def faked(op, x, w):
    with torch._subclasses.FakeTensorMode() as mode:
        return op(mode.from_tensor(x), mode.from_tensor(w))


def compiled(op, x, w, *, backend="eager"):
    torch._dynamo.reset()
    return torch.compile(lambda x: op(x, w) + 1, backend=backend, fullgraph=True)(x)


def symbolic(op, x, w):
    traced = torch.fx.symbolic_trace(lambda x: op(x, w))
    return [str(node.target) for node in traced.graph.nodes], traced(x)


def made(op, x, w, **options):
    traced = make_fx(lambda x: op(x, w), **options)(x)
    return traced.code, traced(x)


def inference(op, x, w):
    with torch.inference_mode():
        x = x + 1
    w.requires_grad_()
    return op(x, w).sum().backward()


# What either function is asked, as torch is: op(x, w) is F.linear, or torch.matmul with w transposed.
PRODUCTS = {
    "x negated lazily": lambda op, x, w: op(torch._neg_view(x), w),
    "w negated lazily": lambda op, x, w: op(x, torch._neg_view(w)),
    "x of a complex conjugate": lambda op, x, w: op(torch.view_as_complex(half(M, K, 2)).conj().imag, w),
    "x zero without memory": lambda op, x, w: op(torch._efficientzerotensor(x.shape, dtype=x.dtype), w),
    "w zero without memory": lambda op, x, w: op(x, torch._efficientzerotensor(w.shape, dtype=w.dtype)),
    "x without memory": lambda op, x, w: op(emptied(x), w),
    "w without memory": lambda op, x, w: op(x, emptied(w)),
    "autocast to bfloat16": under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast to float16": under(lambda: torch.autocast("cpu", torch.float16)),
    "x has a tangent": lambda op, x, w: dual(op, x, w, which=0),
    "w has a tangent": lambda op, x, w: dual(op, x, w, which=1),
    "jvp": lambda op, x, w: torch.func.jvp(lambda x: op(x, w), (x,), (half(M, K),)),
    "jvp of w": lambda op, x, w: torch.func.jvp(lambda w: op(x, w), (w,), (half(N, K),)),
    "vjp": lambda op, x, w: torch.func.vjp(lambda x: op(x, w), x)[1](half(M, N)),
    "grad": lambda op, x, w: torch.func.grad(lambda x: op(x, w).sum())(x),
    "jacfwd": lambda op, x, w: torch.func.jacfwd(lambda t: op(x * t, w))(torch.tensor(2.0).half()),
    "vmap over x": lambda op, x, w: torch.func.vmap(lambda x: op(x, w))(half(3, M, K)),
    "vmap over w": lambda op, x, w: torch.func.vmap(lambda w: op(x, w))(half(3, N, K)),
    "vmap over another": lambda op, x, w: torch.func.vmap(lambda y: op(x, w) + y)(half(3)),
    "functionalize": lambda op, x, w: torch.func.functionalize(lambda x: op(x, w).add_(1))(x),
    "vectorised jacobian": lambda op, x, w: torch.autograd.functional.jacobian(
        lambda t: op(x * t, w), torch.tensor(2.0).half(), vectorize=True, strategy="forward-mode"
    ),
    "gradients": gradients,
    "gradients to x": lambda op, x, w: gradients(lambda x: op(x, w), x),
    "gradients from an inference tensor": inference,
    "jit.trace": lambda op, x, w: torch.jit.trace(lambda x: op(x, w), (x,), check_trace=False)(x + 1),
    "fx": symbolic,
    "make_fx": made,
    "make_fx before dispatch": lambda op, x, w: made(op, x, w, pre_dispatch=True),
    "make_fx on fake tensors": lambda op, x, w: made(op, x, w, tracing_mode="symbolic"),
    "fake tensors": faked,
    "compiled with gradients": lambda op, x, w: gradients(lambda x, w: compiled(op, x, w, backend="aot_eager"), x, w),
    "counting operations": under(lambda: FlopCounterMode(display=False), lambda mode: mode.get_total_flops()),
    "a mode that sees operators": under(Operators, lambda mode: mode.seen),
    "a mode that sees functions": under(Functions, lambda mode: mode.seen),
    "deterministic algorithms": deterministic,
    "another default device": default_device,
    "x of a subclass": lambda op, x, w: op(own(x), w),
    "w of a subclass": lambda op, x, w: op(x, own(w)),
    "x on meta": lambda op, x, w: op(x.to("meta"), w),
    "both on meta": lambda op, x, w: op(x.to("meta"), w.to("meta")),
    "x sparse": lambda op, x, w: op(x.to_sparse(), w),
    "w sparse": lambda op, x, w: op(x, w.to_sparse()),
    "x sparse in rows": lambda op, x, w: op(x.to_sparse_csr(), w),
    "x nested": lambda op, x, w: op(torch.nested.nested_tensor([x]), w),
    "x float32": lambda op, x, w: op(x.float(), w),
    "both float32": lambda op, x, w: op(x.float(), w.float()),
    "w bfloat16": lambda op, x, w: op(x, w.bfloat16()),
    "x a list": lambda op, x, w: op(x.tolist(), w),
    "x nothing": lambda op, x, w: op(None, w),
    "x a number": lambda op, x, w: op(x[0, 0], w),
    "x a vector": lambda op, x, w: op(x[0], w),
    "x too wide": lambda op, x, w: op(half(M, K + 1), w),
    "x without rows": lambda op, x, w: op(x[:0], w),
    "x without columns": lambda op, x, w: op(x[:, :0], w[:, :0]),
    "w without rows": lambda op, x, w: op(x, w[:0]),
    "x transposed": lambda op, x, w: op(half(K, M).t(), w),
    "x every second column": lambda op, x, w: op(half(M, 2 * K)[:, ::2], w),
    "x one row broadcast": lambda op, x, w: op(x[:1].expand(M, K), w),
    "x in heads": lambda op, x, w: op(half(4, 2, 3, K).transpose(1, 2), w),
    "x overlapping itself": lambda op, x, w: op(half(M + K).as_strided((M, K), (1, 1)), w),
    "w one row broadcast": lambda op, x, w: op(x, w[:1].expand(N, K)),
    "w overlapping itself": lambda op, x, w: op(x, half(N + K).as_strided((N, K), (1, 1))),
    "x at an odd place": lambda op, x, w: op(half(M * K + 1)[1:].view(M, K), w),
}

# Only F.linear has a bias, and a weight that is transposed.
LINEAR = {
    "w a vector": lambda op, x, w: op(x, w[0]),
    "w a number": lambda op, x, w: op(x, w[0, 0]),
    "w of three dimensions": lambda op, x, w: op(x, half(2, N, K)),
    "w a list": lambda op, x, w: op(x, w.tolist()),
    "w sparse in rows": lambda op, x, w: op(x, w.to_sparse_csr()),
    "bias a matrix": lambda op, x, w: op(x, w, half(M, N)),
    "bias a row": lambda op, x, w: op(x, w, half(1, N)),
    "bias a column": lambda op, x, w: op(x, w, half(M, 1)),
    "bias of three dimensions": lambda op, x, w: op(x, w, half(2, M, N)),
    "bias one number": lambda op, x, w: op(x, w, half(1)),
    "bias a scalar": lambda op, x, w: op(x, w, half(1)[0]),
    "bias a Python number": lambda op, x, w: op(x, w, 1.0),
    "bias empty": lambda op, x, w: op(x, w, half(0)),
    "bias too short": lambda op, x, w: op(x, w, half(N - 1)),
    "bias too long": lambda op, x, w: op(x, w, half(N + 1)),
    "bias float32": lambda op, x, w: op(x, w, torch.randn(N)),
    "bias bfloat16": lambda op, x, w: op(x, w, half(N).bfloat16()),
    "bias of integers": lambda op, x, w: op(x, w, torch.arange(N)),
    "bias on meta": lambda op, x, w: op(x, w, half(N).to("meta")),
    "bias sparse": lambda op, x, w: op(x, w, half(N).to_sparse()),
    "bias of a subclass": lambda op, x, w: op(x, w, own(half(N))),
    "bias negated lazily": lambda op, x, w: op(x, w, torch._neg_view(half(N))),
    "bias without memory": lambda op, x, w: op(x, w, emptied(half(N))),
    "bias has a tangent": lambda op, x, w: dual(op, x, w, half(N), which=2),
    "bias has a gradient": lambda op, x, w: gradients(lambda b: op(x, w, b), half(N)),
    "vmap over bias": lambda op, x, w: torch.func.vmap(lambda b: op(x, w, b))(half(3, N)),
}


def within(op, x, w, *, context=nullcontext):
    with context():
        return op(x, w)


def made_inside(op, x, w):
    with torch.inference_mode():
        x, w = x + 1, w + 1
    return op(x, w)


ORDINARY = {
    "plain": within,
    "no gradients": lambda op, x, w: within(op, x.requires_grad_(), w.requires_grad_(), context=torch.no_grad),
    "inference mode": lambda op, x, w: within(op, x, torch.nn.Parameter(w), context=torch.inference_mode),
    "inference tensors": made_inside,
    "autocast elsewhere": lambda op, x, w: within(op, x, w, context=lambda: torch.autocast("cuda", torch.bfloat16)),
    "autocast off": lambda op, x, w: within(op, x, w, context=lambda: torch.autocast("cpu", enabled=False)),
    "tangents of others": lambda op, x, w: within(op, x, w, context=forward_ad.dual_level),
    "leading dimensions": lambda op, x, w: op(x.view(2, 3, 4, K), w),
    "one of a broadcast": lambda op, x, w: op(x[None].as_strided((1, M, K), (0, K, 1)), w),
    "w is x": lambda op, x, w: op(w[:M], w),
    "compiled": compiled,
    "compiled ahead of autograd": lambda op, x, w: compiled(op, x, w, backend="aot_eager"),
}
