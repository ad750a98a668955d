"""Where episodes are collected: interchangeable, and without effect on any result."""

from __future__ import annotations

from typing import Protocol

from flame_rl.backends.dispatch import Collected
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot


class Backend(Protocol):
    """What the training loop knows of a place where episodes are collected."""

    def describe(self, environment: Environment) -> EnvironmentSpec:
        """Read the environment's spaces and choose its simulator.

        Raises UsageError if the environment cannot be made or learned, or not by that simulator.
        """
        ...

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        """All episodes of the request, sorted by index.

        Raises:
            UsageError: the environment is at fault: it cannot be made, returns NaN, ….
            RunError: workers kept failing.
            Interrupted: the user asked to stop.
        """
        ...

    def close(self) -> None:
        """Leave nothing behind. May be called twice."""
        ...
