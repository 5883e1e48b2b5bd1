"""The GPU that a worker judges on: what it is, what it can at most do, and what a jail must show of it."""

import os
from functools import cache
from pathlib import Path

import msgspec

from cudal2 import arch
from cudal2.records import HarnessFault
from cudal2.target import Target, for_capability

NO_GPU = (
    "Run on a machine with an NVIDIA GPU and driver; without one, target=cpu judges kernels for the processor (.cpp)"
)


class Device(msgspec.Struct, frozen=True):
    """The first visible GPU. `flops` and `bandwidth` (bytes/s) are ceilings that no kernel exceeds."""

    name: str
    uuid: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    flops: float
    bandwidth: float
    driver: str
    driver_library: str

    @property
    def target(self) -> Target:
        """What kernels for it are compiled for."""
        return for_capability(*self.capability)

    def floor(self, flop: float, nbytes: float) -> float:
        """Seconds that no kernel undercuts: arithmetic at the peak rate, or the bytes beyond what the L2 can hold."""
        return max(flop / self.flops, (nbytes - self.l2_bytes) / self.bandwidth)


def available() -> bool:
    """Whether a GPU and its driver answer. ValueError where its architecture has no record."""
    try:
        find()
    except HarnessFault:
        return False
    return True


@cache
def find() -> Device:
    """The first visible GPU, asked through the driver.

    Raises HarnessFault where there is none, ValueError where its architecture has no record.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise HarnessFault("cuda-bindings is not installed", 'pip install "cudal2[cuda]"') from error

    def ask(function, *arguments):
        try:
            code, *values = function(*arguments)
        except RuntimeError as error:  # the driver's library is missing
            raise HarnessFault("no NVIDIA driver answers", NO_GPU) from error
        if code != driver.CUresult.CUDA_SUCCESS:
            raise HarnessFault(f"no NVIDIA GPU answers ({code.name})", NO_GPU)
        return values[0] if values else None

    ask(driver.cuInit, 0)
    number = ask(driver.cuDeviceGet, 0)
    kinds = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        return ask(driver.cuDeviceGetAttribute, getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), number)

    capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    processors, kilohertz = attribute("MULTIPROCESSOR_COUNT"), attribute("CLOCK_RATE")
    memory_kilohertz, bus = attribute("MEMORY_CLOCK_RATE"), attribute("GLOBAL_MEMORY_BUS_WIDTH")
    version = ask(driver.cuDriverGetVersion)
    return Device(
        name=ask(driver.cuDeviceGetName, 128, number).decode().strip("\0 "),
        uuid=bytes(ask(driver.cuDeviceGetUuid, number).bytes).hex(),
        capability=capability,
        multiprocessors=processors,
        l2_bytes=attribute("L2_CACHE_SIZE"),
        flops=arch.for_capability(*capability).flop_per_cycle * processors * kilohertz * 1e3,
        bandwidth=2 * memory_kilohertz * 1e3 * bus / 8,
        driver=f"{_kernel_module()} (CUDA {version // 1000}.{version % 1000 // 10})",
        driver_library=_mapped("libcuda.so"),
    )


def count() -> int:
    """How many GPUs this process may see. Raises HarnessFault where there is none."""
    find()  # initialises the driver
    from cuda.bindings import driver

    code, number = driver.cuDeviceGetCount()
    if code != driver.CUresult.CUDA_SUCCESS:
        raise HarnessFault(f"the NVIDIA driver does not count its GPUs ({code.name})", NO_GPU)
    return number


def _kernel_module() -> str:
    path = Path("/sys/module/nvidia/version")
    return path.read_text().strip() if path.exists() else "unknown"


def _mapped(name: str) -> str:
    """Path of a shared library of that name which this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(name):
            return path
    raise HarnessFault(f"{name} is not loaded", NO_GPU)


def nodes() -> list[Path]:
    """The device files that a CUDA process opens."""
    return [path for path in sorted(Path("/dev").glob("nvidia*")) if path.is_char_device()]


def readable() -> list[Path]:
    """Folders that a CUDA process reads beyond the system's own."""
    folder = Path(find().driver_library).resolve().parent
    return [] if folder.is_relative_to("/usr") else [folder]


def environment() -> dict[str, str]:
    """What a CUDA process needs to find its driver and the same GPU as we do.

    Every verdict needs two contexts. They use one stream, and with one queue instead of eight to the GPU a context is
    made in 0.06 s instead of 0.12 s.
    """
    found = {
        "LD_LIBRARY_PATH": str(Path(find().driver_library).parent),
        "CUDA_MODULE_LOADING": "EAGER",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return found
