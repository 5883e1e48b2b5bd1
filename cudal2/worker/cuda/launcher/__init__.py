"""The library that exported kernels are launched by: host code of our own, the driver and nothing else."""
