"""What tests of the runtime share."""

import gpu_export
import pytest


@pytest.fixture(scope="session")
def gpu_folder(tmp_path_factory):
    """An export made on this machine's GPU."""
    return gpu_export.exported(tmp_path_factory.mktemp("gpu"))
