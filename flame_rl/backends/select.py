"""Start the backend that a configuration asks for."""

import os
import threading

from flame_rl.backends import Backend
from flame_rl.backends.tasks import Deadlines
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.experiment import CALLABLE, environment_id
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import available_cores
from flame_rl.wire.messages import Environment


def is_distributed(config: TrainConfig) -> bool:
    """Whether to collect on a Flame cluster: one is configured, and no setting rules it out."""
    if config.execution.local or config.output.reproduce is not None:
        return False
    # Unlike pathlib, these take a home that is not there, or cannot be read.
    file = os.path.expanduser("~/.flame/flame.yaml")  # noqa: PTH111
    return "FLAME_ENDPOINT" in os.environ or os.path.exists(file)  # noqa: PTH110


def where_collected(config: TrainConfig) -> str | None:
    """A note that no cluster is configured; None if there is one, or `--local` was given."""
    if config.execution.local or is_distributed(config):
        return None
    workers = local_workers(config)
    where = f"with {workers} local workers" if workers else "in this process"
    return f"No Flame cluster is configured; collecting {where}."


def local_workers(config: TrainConfig) -> int:
    """The number of worker processes on this machine: as set, or one per core."""
    if config.output.reproduce is not None or not isinstance(config.experiment.env, str):
        return 0
    workers = config.execution.workers
    return available_cores() if workers is None else workers


def make_backend(config: TrainConfig, stop: threading.Event) -> Backend:
    """Start the backend, which ends its waits once `stop` is set. Raises UsageError or RunError."""
    distributed = is_distributed(config)
    env, execution = config.experiment.env, config.execution
    if not isinstance(env, str) and (distributed or execution.workers):
        name = config.experiment.env_name.removeprefix(CALLABLE)
        raise UsageError(
            f"--env: the function {name} makes environments in this process alone (local=True, "
            "workers=0); register the environment in a module, and name it as module:EnvId"
        )
    limits = execution.task_timeout, execution.worker_episodes, execution.worker_megabytes
    if distributed:
        # Imported here, as a run needs one backend: flamepy takes a second.
        from flame_rl.backends.flame.backend import FlameBackend

        environment = Environment(environment_id(env), wrapper=config.experiment.wrapper)
        deadlines = Deadlines(*limits, execution.workers_per_executor)
        return FlameBackend(environment, execution, deadlines, stop)
    from flame_rl.backends.local import InlineBackend, ProcessBackend

    workers = local_workers(config)
    return ProcessBackend(workers, Deadlines(*limits), stop) if workers else InlineBackend(stop)
