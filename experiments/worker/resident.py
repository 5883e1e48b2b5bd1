"""Do lines of the L2 that a kernel wants kept (`evict_last`) outlive its turn and slow the vendor's library?

    python experiments/worker/resident.py > resident.txt      # on a GPU, about two minutes

Judges a plain kernel, and the same with a second launch that fetches 40 MB of its workspace as lines to evict last,
in turn, and prints the seconds of the same baseline in either verdict; then once more where the referee asks the driver
before every turn to make all such lines ordinary ones (cuCtxResetPersistingL2Cache).
"""

import ctypes
import itertools
import statistics
import tempfile
from pathlib import Path

from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.worker.cuda import pairing
from cudal2.worker.worker import Worker

PLAIN = Path(__file__).parents[2] / "tests/worker/cuda/kernels/mma.cu"
SHAPES = ("1024_1024_1024", "2048_2048_2048", "4096_4096_1024", "8192_1024_4096", "4096_4096_4096")
ROUNDS = 3
KEEP = """
__global__ void keep(char* memory, size_t bytes) {
    int sum = 0;
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    for (size_t i = (blockIdx.x * 256ull + threadIdx.x) * 16; i < bytes; i += gridDim.x * 256ull * 16) {
        int4 line;
        asm volatile("ld.global.L2::cache_hint.v4.s32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(line.x), "=r"(line.y), "=r"(line.z), "=r"(line.w) : "l"(memory + i), "l"(policy));
        sum += line.x ^ line.y ^ line.z ^ line.w;
    }
    if (sum == 0x5eed) *(int*)(memory + bytes - 4) = sum;  // hardly ever; else nobody would want what was loaded
}
extern "C" size_t hgemm_workspace(int M, int N, int K) { return 40 << 20; }
"""
CALL = "    keep<<<264, 256, 0, stream>>>((char*)workspace, 40 << 20);\n"


def sources() -> dict[str, str]:
    """The plain kernel, and the one that keeps lines; no two are the same text, lest a verdict is remembered."""
    plain = PLAIN.read_text()
    before, entry, after = plain.partition('extern "C" cudaError_t hgemm(')
    assert entry
    return {"plain": plain, "keeps": before + KEEP + entry + after.replace("    return", CALL + "    return", 1)}


def baseline_us(worker: Worker, source: str, shape: str) -> float:
    """Of the baseline that the kernel was paired with: the same each time, as it was chosen once for the shape."""
    verdict = worker.evaluate(Candidate(source, parse(shape, "tn", "f32"), "sm_90a"))
    assert verdict.timing, verdict.reason
    return verdict.timing.baseline_us


def main() -> None:
    ready, driver = pairing.GpuSides.ready, ctypes.CDLL("libcuda.so.1")

    def forgetting(self: pairing.GpuSides, *those: object) -> None:
        assert driver.cuCtxResetPersistingL2Cache() == 0
        ready(self, *those)  # type: ignore[arg-type]

    print(f"{'shape':<16} {'':<12} {'plain µs':>9} {'keeps µs':>9}  ratio, and of every round")
    with (
        tempfile.TemporaryDirectory() as cache,
        Worker(WorkerConfig(protocols=("device",), cache=cache), "sm_90a") as worker,
    ):
        for shape, (what, now) in itertools.product(SHAPES, (("as it is", ready), ("forgetting", forgetting))):
            pairing.GpuSides.ready = now  # type: ignore[method-assign]
            found: dict[str, list[float]] = {"plain": [], "keeps": []}
            for number in range(ROUNDS):
                for kind, source in sources().items():
                    found[kind].append(baseline_us(worker, f"{source}// {what} {number}\n", shape))
            ratios = [keeps / plain for plain, keeps in zip(found["plain"], found["keeps"])]
            plain, keeps = (statistics.median(those) for those in found.values())
            every = " ".join(f"{ratio:.3f}" for ratio in ratios)
            print(
                f"{shape:<16} {what:<12} {plain:>9.2f} {keeps:>9.2f}  {statistics.median(ratios):.3f}: {every}",
                flush=True,
            )


if __name__ == "__main__":
    main()
