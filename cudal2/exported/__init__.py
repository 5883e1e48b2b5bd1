"""What every exported folder carries, to put its kernels behind torch: this package needs nothing of cudal2 but itself.

An exported folder holds a copy of these files as the package `cudal2_kernels`, with `installed.py` as its `__init__`.
So they import torch and the standard library, and each other by relative names.
"""
