"""Judging CUDA kernels: toolchain, build, gate; the candidate's host code recorded in a jail; its kernels replayed."""
