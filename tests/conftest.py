"""Shared by all tests: nothing here asks a network or a login for anything."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")

pytest.register_assert_rewrite("families.contract")  # its assertions explain themselves too
