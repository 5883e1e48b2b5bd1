"""Shared by all tests: nothing here asks a network or a login for anything."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
