"""Which kernels torch.matmul takes where K is no multiple of 16 and beside it, and their microseconds.

    python experiments/h200/layers/vendor.py > experiments/h200/layers/vendor.txt

By torch's profiler, over sets of operands that together are larger than the L2; no verdict, for nothing else runs in turn.
vendor.txt was made before this was tidied: its operands were tensors of their own.
"""  # noqa: E501

import torch
from torch.profiler import ProfilerActivity, profile

SHAPES = (
    (4096, 4096, (4096, 4112, 4120)),
    (3056, 984, (1760, 1768)),
    (840, 1408, (3856, 3864)),
    (1024, 8192, (8192, 8200)),
)
BYTES, ROUNDS = 200e6, 3


def main() -> None:
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    for m, n, k in ((m, n, k) for m, n, some in SHAPES for k in some):
        sets = max(3, int(BYTES / (2 * k * (m + n))))
        a = torch.randn(sets, m, k, device="cuda").half()
        b = torch.randn(sets, n, k, device="cuda").half()
        a[0] @ b[0].t()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(ROUNDS):
                for left, right in zip(a, b):
                    left @ right.t()
            torch.cuda.synchronize()
        for event in seen.key_averages():
            if event.device_time:
                print(m, n, k, event.key, event.count, f"{event.device_time:.2f}")


if __name__ == "__main__":
    main()
