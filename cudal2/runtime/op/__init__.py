"""The library behind torch.ops.cudal2: C++ of our own over libtorch's stable ABI."""
