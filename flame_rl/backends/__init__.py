"""Backends collect episodes. They are interchangeable and never change a result."""

from __future__ import annotations

from typing import Protocol

from flame_rl.backends.dispatch import Collected
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot


class Listener(Protocol):
    """Receives what a person should know while episodes are awaited."""

    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def waiting(self, text: str) -> None:
        """What the run waits for now; "" once it waits no longer."""
        ...

    def collecting(self, request: CollectRequest, episodes: int, env_steps: int) -> None:
        """Episodes and env steps of the request that have been played so far; called a few times
        a second by the collecting thread. Each of several agents has an episode of its own."""
        ...


class Backend(Protocol):
    """What the training loop requires of a backend.

    Attributes:
        listener: receives progress, and what a cluster is waited for; None: nobody does.
    """

    listener: Listener | None

    def describe(self, environment: Environment) -> EnvironmentSpec:
        """Read the environment's spaces and choose its simulator.

        Raises UsageError if the environment or its simulator cannot be made, or a space is of an
        unsupported kind.
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
        """End the workers and remove what lies on a cluster. May be called twice."""
        ...
