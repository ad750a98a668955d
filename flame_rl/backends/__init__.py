"""Backends collect episodes. They are interchangeable and never change a result."""

from __future__ import annotations

from typing import Protocol

from flame_rl.backends.dispatch import Collected
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot


class Listener(Protocol):
    """Is told by a backend what a person should know while episodes are awaited."""

    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def waiting(self, text: str) -> None:
        """What the run waits for, as of now; "" once it does not wait any more."""
        ...

    def collecting(self, request: CollectRequest, episodes: int, env_steps: int) -> None:
        """That many of the request's episodes have been played, in that many env steps; called a
        few times a second by the thread that collects. What several agents play together is an
        episode of each."""
        ...


class Backend(Protocol):
    """What the training loop requires of a backend.

    Attributes:
        listener: told how many episodes have come, and what a cluster is waited for; None: nobody
            is.
    """

    listener: Listener | None

    def describe(self, environment: Environment) -> EnvironmentSpec:
        """Read the environment's spaces and choose its simulator.

        Raises UsageError if the environment or its simulator cannot be made, or its spaces are of
        an unsupported kind.
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
