"""The newest policy of a run in bf16, as one file: half of a checkpoint's weights, and no state of the optimizer.

python experiments/h200/learning/half.py RUN policy.tar
mkdir policy && tar -C policy -xf policy.tar              # policy.path=policy
"""

import sys
import tarfile
import tempfile
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from cudal2.policy.locate import locate


def main(run: str, file: Path) -> None:
    place = locate(run)
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_pretrained(place).bfloat16().save_pretrained(folder)
        AutoTokenizer.from_pretrained(place).save_pretrained(folder)
        with tarfile.open(file, "w") as tar:
            tar.add(folder, arcname=".")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
