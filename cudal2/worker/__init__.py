"""Compile, verify and time a kernel that nobody has reason to trust.

`worker.Worker` judges one candidate at a time in this process; `pool.Pool` keeps one in a process of its own.
Nothing is imported here: whoever needs `lifetime` alone does not wait for torch.
"""
