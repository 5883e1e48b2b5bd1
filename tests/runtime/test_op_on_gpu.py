"""torch.ops.cudal2 and the installed package on a GPU: compiled, captured, on any stream and device, beside CuPy."""

import os
import shutil
import subprocess
import sys
import threading
import zipfile

import pytest
import torch
from exported import change, wheel
from gpu_export import SEMAPHORES, SOURCES, inputs, right

from cudal2.cli import main
from cudal2.exported.library import Library
from cudal2.exported.op import PADDED, TRIED
from cudal2.problem import Problem
from cudal2.runtime import load, manifest, patch

pytestmark = pytest.mark.gpu
linear = torch.nn.functional.linear


@pytest.fixture
def lib(gpu_folder):
    return load(gpu_folder)


@pytest.fixture(params=SOURCES, ids=SOURCES.get)
def problem(request, gpu_folder) -> Problem:
    if request.param not in {kernel.problem for kernel in manifest.read(gpu_folder).kernels}:
        pytest.skip("not for this GPU")
    return request.param


def replay(graph, found, stream) -> None:
    """On that stream, into outputs that were emptied."""
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for one in found:
            one.zero_()
        graph.replay()
    torch.cuda.synchronize()


def test_torch_finds_no_fault_with_the_operators(lib):
    a, b, _ = inputs(SEMAPHORES)
    bias = torch.randn(SEMAPHORES.n, device="cuda").half()
    for given in ((a, b), (a, b, bias), tuple(one.clone().requires_grad_() for one in (a, b, bias))):
        assert set(torch.library.opcheck(torch.ops.cudal2.linear.default, given).values()) == {"SUCCESS"}
    assert set(torch.library.opcheck(torch.ops.cudal2.matmul.default, (a, b.t())).values()) == {"SUCCESS"}


def test_each_call_is_served_and_right(lib, problem):
    a, b, exact = inputs(problem)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            before = lib.calls["kernel"]
            calls = (
                torch.ops.cudal2.linear(a, b),
                torch.ops.cudal2.matmul(a, b.t()),
                lib.linear(a, b),
                lib.matmul(a, b.t()),
            )
            assert all(right(found, exact) for found in calls) and lib.calls["kernel"] == before + 4


def test_a_first_call_that_is_captured_is_torchs(gpu_folder, problem):
    """No kernel is tried while a graph is recorded."""
    lib = load(gpu_folder)
    a, b, exact = inputs(problem)
    graph = torch.cuda.CUDAGraph()
    linear(a, b)  # torch's own library may not be made ready there either
    with torch.cuda.graph(graph):
        found = lib.matmul(a, b.t())
    graph.replay()
    assert lib.calls == {TRIED[0]: 1} and right(found, exact)


def test_calls_may_be_captured_and_replayed_on_other_inputs(gpu_folder, problem):
    """Twice in a graph, and on another stream than the one it was captured on."""
    lib = load(gpu_folder)
    a, b, _ = inputs(problem)
    lib.matmul(a, b.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [torch.ops.cudal2.linear(a, b), lib.matmul(a, b.t())]
    assert lib.calls == {"kernel": 3}
    for stream in [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]:
        a.copy_(torch.randn_like(a))
        b.copy_(torch.randn_like(b))
        exact = a.double() @ b.double().t()
        replay(graph, found, stream)
        assert all(right(one, exact) for one in found)


def test_graphs_and_calls_side_by_side_do_not_share_semaphores(lib):
    """Two graphs and eager calls of the kernel that counts in its workspace, on streams that overlap."""
    a, b, exact = inputs(SEMAPHORES)
    torch.ops.cudal2.linear(a, b)
    graphs, outputs = [torch.cuda.CUDAGraph() for _ in range(2)], []
    for graph in graphs:
        with torch.cuda.graph(graph):
            outputs += [torch.ops.cudal2.linear(a, b) for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(20):
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            outputs.append(torch.ops.cudal2.linear(a, b))
    torch.cuda.synchronize()
    assert all(right(one, exact) for one in outputs)


@pytest.fixture(scope="module")
def wide(gpu_folder, tmp_path_factory):
    """Its kernels serve from 1 row on."""
    return change(shutil.copytree(gpu_folder, tmp_path_factory.mktemp("wide") / "export"), fewest_rows=1)


def fewer(problem, rows):
    """A, B and their product, with fewer rows than the kernel's, after memory that is handed out next held NaN."""
    a, b, _ = inputs(problem)
    torch.full((problem.m, max(problem.k, problem.n)), torch.nan, device="cuda", dtype=torch.float16)
    return a[:rows].clone(), b, a[:rows].double() @ b.double().t()


def test_fewer_rows_are_served_by_a_kernel_of_more(wide, problem):
    lib = load(wide)
    for rows in (problem.m - 1, problem.m - 7, problem.m // 2 + 1):
        a, b, exact = fewer(problem, rows)
        for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with context():
                before = lib.calls[PADDED]
                calls = torch.ops.cudal2.linear(a, b, None, lib.id), lib.linear(a, b), lib.matmul(a, b.t())
                assert all(right(found, exact) and found.is_contiguous() for found in calls)
                assert lib.calls[PADDED] == before + 3
    a, b, exact = fewer(problem, 6)
    assert right(lib.linear(a.view(2, 3, -1), b).view(6, -1), exact)
    assert set(torch.library.opcheck(torch.ops.cudal2.linear.default, (a, b, None, lib.id)).values()) == {"SUCCESS"}


def test_fewer_rows_are_captured_and_replayed_on_other_inputs(wide, problem):
    """Twice in a graph, whose memory holds the rows; and on another stream than the one it was captured on."""
    lib = load(wide)
    a, b, _ = fewer(problem, problem.m - 3)
    lib.matmul(a, b.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [torch.ops.cudal2.linear(a, b, None, lib.id), lib.matmul(a, b.t())]
    assert lib.calls == {PADDED: 3}
    for stream in [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]:
        a.copy_(torch.randn_like(a))
        exact = a.double() @ b.double().t()
        torch.full((4096, 4096), torch.nan, device="cuda")
        replay(graph, found, stream)
        assert all(right(one, exact) for one in found)


def test_threads_copy_their_rows_on_streams_of_their_own(wide):
    lib = load(wide)
    wrong = []
    lib.linear(*fewer(SEMAPHORES, SEMAPHORES.m - 1)[:2])

    def work(rows):
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b, exact = fewer(SEMAPHORES, rows)
            found = [lib.linear(a, b) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
            wrong.extend(one for one in found if not right(one, exact))

    threads = [threading.Thread(target=work, args=(SEMAPHORES.m - count,)) for count in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and lib.calls == {PADDED: 201}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}, {"dynamic": True}], ids=str)
def test_a_compiled_model_runs_through_kernels_of_more_rows(wide, options):
    torch._dynamo.reset()
    lib = load(wide)
    model = torch.nn.Sequential(torch.nn.Linear(SEMAPHORES.k, SEMAPHORES.n, bias=False), torch.nn.ReLU()).cuda().half()
    assert patch(model, lib) == ["0"]
    compiled = torch.compile(model, fullgraph=True, **options)
    with torch.no_grad():
        for rows in (200, 200, 200, 201, 256):
            x = torch.randn(rows, SEMAPHORES.k, device="cuda").half()
            assert right(compiled(x), (x.double() @ model[0].weight.double().t()).relu())
    assert lib.calls[PADDED] > 0, lib.calls


def test_the_neighbourhood_of_each_kernel_is_measured_and_settled(wide, tmp_path, capsys):
    """No test decides which is faster; none of these kernels lets a row see another."""
    folder = shutil.copytree(wide, tmp_path / "export")
    assert main(["bench", "call", str(folder), "neighbours=true", "settle=true"]) == 0
    told = capsys.readouterr().out
    head, *rows = (line.split() for line in told.splitlines()[:-3])
    assert rows and all(row[head.index(name)] == "True" for row in rows for name in ("served", "apart")), told
    assert {"call_us", "host_us", "graph_us", "graph_torch_us"} < set(head)
    for one in manifest.read(folder).kernels:
        assert one.fewest_rows is None or 1 <= one.fewest_rows < one.problem.m
    load(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}, {"dynamic": True}], ids=str)
def test_a_compiled_model_runs_through_kernels(lib, options):
    """Also where torch.compile makes CUDA graphs of it, which look for memory that somebody kept."""
    torch._dynamo.reset()
    m, n, k = SEMAPHORES.m, SEMAPHORES.n, SEMAPHORES.k
    model = torch.nn.Sequential(torch.nn.Linear(k, n, bias=False), torch.nn.ReLU()).cuda().half()
    assert patch(model, lib) == ["0"]
    compiled = torch.compile(model, fullgraph=True, **options)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(m, k, device="cuda").half()
            before = lib.calls["kernel"]
            assert right(compiled(x), (x.double() @ model[0].weight.double().t()).relu())
        if not options.get("mode"):
            assert lib.calls["kernel"] == before + 1, lib.calls
        assert lib.calls["kernel"] > 0, lib.calls
    x = torch.randn(m, k, device="cuda").half()
    compiled(x).float().square().sum().backward()
    assert model[0].weight.grad is not None


def test_everything_else_is_torchs(lib):
    a, b, _ = inputs(SEMAPHORES)
    bias, before = torch.randn(SEMAPHORES.n, device="cuda").half(), lib.calls["kernel"]
    odd = torch.empty(b.numel() + 8, dtype=torch.float16, device="cuda")[8:].view_as(b).copy_(b)
    cases = [(a, b, bias), (a[:-1], b), (a.float(), b.float()), (a.bfloat16(), b.bfloat16()), (a, odd)]
    cases += [(a.t().contiguous().t(), b), (a, b.clone().requires_grad_())]
    for given in cases:
        for op in (lib.linear, torch.ops.cudal2.linear):
            assert torch.equal(op(*given), linear(*given))
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.ops.cudal2.linear(a, b).dtype is lib.linear(a, b).dtype is torch.bfloat16
    assert lib.calls["kernel"] == before
    for op in (lib.linear, torch.ops.cudal2.linear, linear):
        with pytest.raises(RuntimeError):
            op(a, b.cpu())


def test_threads_with_streams_of_their_own(lib):
    a, b, exact = inputs(SEMAPHORES)
    torch.cuda.synchronize()
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [torch.ops.cudal2.linear(a, b) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
            wrong.extend(one for one in found if not right(one, exact))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_tensor_on_another_gpu_than_the_current_one(lib):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    a, b, exact = (one.to("cuda:1") for one in inputs(SEMAPHORES))
    before = lib.calls["kernel"]
    for _ in range(2):
        found = torch.ops.cudal2.linear(a, b)
        assert found.device.index == 1 and torch.cuda.current_device() == 0 and right(found, exact)
    assert lib.calls["kernel"] == before + 2


def test_cupys_arrays_on_cupys_stream(lib):
    cupy = pytest.importorskip("cupy")
    a, b, exact = inputs(SEMAPHORES)
    torch.cuda.synchronize()
    before = lib.calls["kernel"]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        found = lib.matmul(cupy.asarray(a), cupy.asarray(b).T)
        assert isinstance(found, cupy.ndarray)
        stream.synchronize()
    assert lib.calls["kernel"] == before + 1 and right(torch.as_tensor(found, device="cuda"), exact)
    assert lib.matmul(cupy.ones((4, 4)), cupy.ones((4, 4))).dtype == cupy.float64


def test_the_installed_package_needs_torch_alone(gpu_folder, tmp_path):
    with zipfile.ZipFile(wheel(gpu_folder, tmp_path)) as archive:
        archive.extractall(tmp_path)
    m, n, k = SEMAPHORES.m, SEMAPHORES.n, SEMAPHORES.k
    program = f"""
import sys, torch
sys.path.insert(0, {str(tmp_path)!r})
sys.modules.update(cudal2=None, msgspec=None)
import cudal2_kernels
x, w = (torch.randn(rows, {k}, device="cuda").half() for rows in ({m}, {n}))
found = [cudal2_kernels.linear(x, w), torch.ops.cudal2.linear(x, w)]
assert all(torch.allclose(one, torch.nn.functional.linear(x, w), rtol=2e-3, atol=2e-1) for one in found)
assert cudal2_kernels.library.calls == {{"kernel": 2}}, cudal2_kernels.library.calls
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": ""}
    subprocess.run([sys.executable, "-P", "-c", program], check=True, env=environment, cwd="/")


def test_what_a_call_costs_is_printed_for_every_kernel(gpu_folder, capsys):
    """How much, no test decides: `cudal2 bench call RUN/export`."""
    assert main(["bench", "call", str(gpu_folder)]) == 0
    told = capsys.readouterr().out
    assert all(f"{figure}: " in told for figure in ("host", "call", "graph"))
    assert len(told.splitlines()) == 1 + len(Library(gpu_folder, every=True)) + 3
