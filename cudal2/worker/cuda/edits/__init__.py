"""Edited kernels beside the unedited one: many a second."""
