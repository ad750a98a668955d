"""Which backend a configuration asks for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from flame_rl.backends import Backend
from flame_rl.backends.patience import Patience
from flame_rl.config import TrainConfig
from flame_rl.machine import available_cores


def flame_is_configured() -> bool:
    """Whether the user has said where a Flame cluster is."""
    return "FLAME_ENDPOINT" in os.environ or (Path.home() / ".flame" / "flame.yaml").exists()


def make_backend(config: TrainConfig, distributed: bool, stop: threading.Event) -> Backend:
    """Start the backend. Raises UsageError or RunError if that cannot be done.

    Args:
        config: the environment, whose module is sent to a cluster; how many workers on this
            machine; how long they may take.
        distributed: whether to collect on the Flame cluster.
        stop: set from outside when the user asks to stop.
    """
    patience = Patience(config.task_timeout, config.worker_episodes, config.worker_megabytes)
    # Imported here because each is heavy and a run needs one: flamepy takes a second.
    if distributed:
        from flame_rl.backends.flame.backend import FlameBackend

        return FlameBackend(config.env, patience, config.cluster_patience, stop)
    workers = local_workers(config)
    if workers == 0:
        from flame_rl.backends.inline import InlineBackend

        return InlineBackend(stop)
    from flame_rl.backends.processes import ProcessBackend

    return ProcessBackend(workers, patience, stop)


def local_workers(config: TrainConfig) -> int:
    """The number of worker processes on this machine: what was asked for, or one per core."""
    if config.reproduce is not None:
        return 0
    if config.workers is not None:
        return config.workers
    return available_cores()
