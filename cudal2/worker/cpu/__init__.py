"""Judging C++ kernels on the processor: buffers, the candidate's process, the baselines."""
