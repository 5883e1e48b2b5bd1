"""Compile, verify and time a kernel that nobody has reason to trust.

`Worker` judges one candidate at a time in this process; `pool.Pool` keeps one in a process of its own.
"""

from cudal2.worker.worker import Worker

__all__ = ["Worker"]
