"""Every verdict ever, in SQLite: the store, its record types, and which kernels of it are worth showing."""

from cudal2.archive.store import Archive

__all__ = ["Archive"]
