"""Backends collect episodes. They are interchangeable and never change a result."""

from typing import Protocol

from flame_rl.backends.dispatch import Collected, Listener
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot


class Backend(Protocol):
    """What the training loop requires of a backend. `listener`: hears of progress and waits."""

    listener: Listener

    def describe(self, environment: Environment) -> EnvironmentSpec:
        """Read the environment's spaces and choose its simulator. Raises UsageError if one of the
        two cannot be made, or a space is of an unsupported kind."""

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        """All episodes of the request, sorted by index. Raises UsageError where the environment is
        at fault (it returns NaN, …), RunError if workers kept failing, Interrupted on a stop."""

    def close(self) -> None:
        """End the workers and remove what lies on a cluster. May be called twice."""
