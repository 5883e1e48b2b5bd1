"""This process as a driver of the cluster that RAY_ADDRESS names, or that a `ray start` here made or joined."""

import logging
import os
import signal
import socket
import threading
from types import ModuleType

from cudal2.records import HarnessFault

SECONDS = 10.0
"""To reach the head node; Ray itself would try for minutes."""

START = (
    "Start the head node with `ray start --head`, each other with `ray start --address=HOST:6379`, this machine among "
    "them; RAY_ADDRESS=HOST:6379 chooses one of several clusters"
)


def ray() -> ModuleType:
    """Ray's module, connected to the cluster; nothing is printed but what we print.

    Raises HarnessFault where Ray is not installed, no cluster answers, or it is of another version of Ray or Python.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise HarnessFault("Ray is not installed", 'pip install "cudal2[ray]", on every node') from error
    if not ray.is_initialized():
        _reach()
        kept = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR)
        except (RuntimeError, ConnectionError, ValueError) as error:
            raise _refused(error) from error
        finally:  # Ray has a SIGTERM of its own
            if threading.current_thread() is threading.main_thread():
                for number, handler in kept:
                    signal.signal(number, handler)
        ray._private.worker._worker_logs_enabled = False  # else a node's death is told in forty lines on stdout
    return ray


def _reach() -> None:
    """Raises HarnessFault where nobody listens at the cluster's address."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        address = canonicalize_bootstrap_address("auto")
        host, _, port = str(address).rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
    except ConnectionRefusedError as error:
        raise HarnessFault(f"no Ray cluster answers at {address}", START) from error
    except (OSError, ValueError) as error:
        given = os.environ.get("RAY_ADDRESS")
        raise HarnessFault(
            f"no Ray cluster at RAY_ADDRESS={given}" if given else "no Ray cluster here", START
        ) from error


def _refused(error: Exception) -> HarnessFault:
    said = " ".join(str(error).split())
    if "ersion mismatch" in said:
        return HarnessFault(said.rstrip("."), "Install the same versions of Ray and Python on every node")
    return HarnessFault(f"the Ray cluster does not take this process: {said[:300].rstrip('.')}", START)
