"""The assembly game: the instructions of a compiled kernel, which of them may change places, and what that gains."""
