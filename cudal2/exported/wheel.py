"""The build backend (PEP 517) of an exported folder, for `pip install FOLDER` and `pip wheel FOLDER`.

The folder is only read. Nothing is compiled, and only Python is needed.
"""

import base64
import hashlib
import json
import platform
import zipfile
from pathlib import Path

NAME = "cudal2_kernels"
SKIPPED = ("__pycache__", ".egg-info")
_HERE = Path(__file__).parent


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """Writes the wheel into that folder and returns its name."""
    files = dict(contents(_HERE))
    version = "1+" + hashlib.sha256(files[f"{NAME}/export/manifest.json"]).hexdigest()[:8]
    tag = f"py3-none-linux_{platform.machine()}"
    about = f"{NAME}-{version}.dist-info"
    files[f"{about}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
        f"Summary: {_summary(files[f'{NAME}/export/manifest.json'])}\n"
        "Requires-Python: >=3.10\nRequires-Dist: torch>=2.11\n"
    ).encode()
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: cudal2\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{about}/entry_points.txt"] = f"[vllm.general_plugins]\n{NAME} = {NAME}:register\n".encode()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    name = f"{NAME}-{version}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def contents(folder: Path):
    """(path in the wheel, bytes): the package's modules, and all else of an exported folder as its data."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part.endswith(SKIPPED) for part in inside.parts):
            mine = inside.parts[0] == NAME
            yield str(inside) if mine else f"{NAME}/export/{inside}", path.read_bytes()


def _summary(manifest: bytes) -> str:
    """A summary in one line, even of a damaged manifest; importing the package says what is wrong with it."""
    try:
        found = json.loads(manifest)
        return f"{len(found['kernels'])} matrix products for {found['environment']['device']}".replace("\n", " ")
    except (ValueError, KeyError, TypeError):
        return "matrix products"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
