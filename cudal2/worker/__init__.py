"""Compile, verify and time a kernel that nobody has reason to trust.

`worker.Worker` judges one candidate at a time in this process; `pool/` keeps one in a process of its own for each
device. Nothing is imported here: whoever needs a part does not wait for torch.
"""
