"""Measures what a call of an exported kernel costs a user: with inputs of its own shape, and with fewer rows."""
