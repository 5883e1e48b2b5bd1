"""What decides how fast a GPU and the vendor's libraries are, beside the hardware and their versions."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from uuid import UUID

from cudal2.records import HarnessFault

UNKNOWN = "power limit unknown"
SECONDS = 60.0
"""For nvidia-smi, which takes one or two where its daemon does not run."""

_READ = re.compile(r"CUDA_|CUBLAS|NVIDIA_TF32_OVERRIDE$|TORCH_BLAS|TORCH_ALLOW_TF32|DISABLE_ADDMM_CUDA_LT$|LD_PRELOAD$")
_PLACES = re.compile(
    r"CUDA_(?:\w*(?:HOME|PATH|DIR|ROOT|VERSION)|CACHE_\w+|VISIBLE_DEVICES|DEVICE_ORDER|MODULE_LOADING"
    r"|DEVICE_MAX_CONNECTIONS)$|CUBLAS\w*_VERSION$"
)
"""Where things lie, which GPU is seen (it has its own key), and what frameworks set for themselves that only matters to
the first call or to several streams: all calls here are warm, and in one."""


def variables(environment: Mapping[str, str]) -> list[str]:
    """`NAME=value` of each variable that the driver or a library reads and that may change what it does or how fast.

    The vendor's libraries run in the worker's own process, with the caller's variables: figures made under some are
    figures of another environment.
    """
    names = (name for name in environment if _READ.match(name) and not _PLACES.match(name))
    return [f"{name}={environment[name]}" for name in sorted(names) if environment[name]]


def power(uuid: str) -> str:
    """`power limit 700.00 W, clock up to 1980 MHz` of the GPU of that uuid (hex); UNKNOWN where it cannot be read.

    Raises HarnessFault where nvidia-smi does not end: a key must not depend on how busy a machine was.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return UNKNOWN
    query = [program, f"--id=GPU-{UUID(uuid)}", "--query-gpu=power.limit,clocks.max.sm", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise HarnessFault("nvidia-smi does not answer", "Look at the GPU with nvidia-smi") from error
    values = [value.strip() for value in done.stdout.split(",")]
    if done.returncode or len(values) != 2 or "W" not in values[0]:
        return UNKNOWN
    return f"power limit {values[0]}, clock up to {values[1]}"
