"""The libraries that a kernel is measured against, and how they are called and timed."""
