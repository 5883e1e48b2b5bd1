"""A repository for Hugging Face's `kernels` (0.17), made of an export: `cudal2 export RUN export.layout=kernels`.

    RUN/kernels/README.md                   its card
    RUN/kernels/build/VARIANT/__init__.py   the package of the export, its data in VARIANT/export
    RUN/kernels/build/VARIANT/metadata.json

A variant is loaded without any other file of the repository, so each is whole. All have the same files: the package
chooses by itself, and its library needs only torch's stable ABI of 2.11 and, on a GPU, the driver.
"""

import json
import platform
import re
import tempfile
from pathlib import Path

from cudal2.exported import held, wheel
from cudal2.files import install
from cudal2.records import HarnessFault
from cudal2.runtime import manifest

NAME, LEAST, LICENCE = "cudal2-kernels", "0.17.0", "MIT"
FRAMEWORK = "torch-stable-abi211"
CUDA = ("cu120", "cu130")
"""`kernels` takes a variant for the same major version of CUDA as torch's, and no later minor version."""
CARD = """---
library_name: kernels
license: mit
---

{count} matrix products, each faster than torch's on the device that it was measured on: {device}.
Elsewhere, and for all other calls, torch serves.

```python
import torch
from pathlib import Path
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, replace_kernel_forward_from_hub
from kernels import use_kernel_mapping

here = Path("kernels")  # this folder
replace_kernel_forward_from_hub(torch.nn.Linear, "Linear", condition=get_local_kernel(here).serves)
layer = LocalLayerRepository(here, layer_name="Linear")
modes = {{Mode.INFERENCE: layer, Mode.INFERENCE | Mode.TORCH_COMPILE: layer}}
with use_kernel_mapping({{"Linear": {{"{backend}": modes}}}}):
    model = kernelize(model, mode=Mode.INFERENCE, device="{backend}")
```
"""


def write(export: Path, folder: Path) -> list[str]:
    """Writes the repository, in place of a former one, and returns the names of its variants.

    Raises ValueError where there is no export, HarnessFault where it is damaged or nothing can be written.
    """
    exported = manifest.read(export)
    cpu = exported.target == "cpu"
    backend = "cpu" if cpu else "cuda"
    files = dict(wheel.contents(export))
    about = {
        "id": f"_{wheel.NAME}_{backend}_{(export / held.DIGEST).read_text()[:8]}",
        "name": NAME,
        "version": 1,
        "kernels-minver": LEAST,
        "license": LICENCE,
        "python-depends": [],
        "backend": {"type": backend} if cpu else {"type": backend, "archs": [_arch(exported.target)]},
    }
    count = sum(one.dispatch for one in exported.kernels)
    told = CARD.format(count=count, device=exported.environment.device, backend=backend)
    variants = [f"{FRAMEWORK}-{one}-{platform.machine()}-linux" for one in (("cpu",) if cpu else CUDA)]
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".kernels.") as scratch:
            new = Path(scratch) / "kernels"
            for variant in variants:
                for name, content in files.items():
                    path = new / "build" / variant / Path(name).relative_to(wheel.NAME)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                (new / "build" / variant / "metadata.json").write_text(json.dumps(about, indent=1))
            (new / "README.md").write_text(told)
            install(new, folder, Path(scratch) / "former")
    except OSError as error:
        raise HarnessFault(f"cannot write {folder}: {error}", "Make room or the folder writable") from error
    return variants


def _arch(target: str) -> str:
    """A GPU's architecture as `kernels` writes it: 9.0a for sm_90a."""
    whole = re.fullmatch(r"sm_(\d+)(\d)([a-z]?)", target)
    assert whole
    return f"{whole[1]}.{whole[2]}{whole[3]}"
