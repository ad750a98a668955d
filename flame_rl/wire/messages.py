"""What travels between the learner and the actors.

Everything here is frozen and holds only NumPy arrays and plain values; `flame_rl.wire` turns it
to bytes and back. In the shapes, D is the width of an observation, A of an action, T the number
of steps of an episode, E of episodes, N of their steps together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

# Normalised observations are clipped at plus and minus this.
OBSERVATION_CLIP = 10.0


@dataclass(frozen=True)
class EnvironmentSpec:
    """What the learner must know of an environment, read from its spaces.

    Attributes:
        env_id: the Gymnasium id, `module:Name-v0` for a user's own.
        observation_dim: D, after flattening.
        action_dim: A for continuous actions, the number of choices for discrete ones.
        continuous: whether actions are real vectors.
        note: one line on why the environment's fast simulator is not used; else empty.
    """

    env_id: str
    observation_dim: int
    action_dim: int
    continuous: bool
    note: str = ""


@dataclass(frozen=True)
class PolicySnapshot:
    """The acting part of a policy: a fully connected network and how to sample from its output.

    Attributes:
        version: the number of updates that these weights have had; actors refuse any other
            version than the one that the request names.
        activation: a name in `flame_rl.actor.policy.acting.ACTIVATIONS`, used between layers.
        weights: one float32 [inputs, outputs] per layer.
        biases: one float32 [outputs] per layer.
        log_std: float32 [A], the logarithm of the Gaussian's standard deviation; None for a
            categorical policy, whose network yields logits.
        observation_mean, observation_std: float32 [D], by which observations are normalised
            before the first layer (and clipped at `OBSERVATION_CLIP`); None: they are not.
    """

    version: int
    activation: str
    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    log_std: np.ndarray | None
    observation_mean: np.ndarray | None = None
    observation_std: np.ndarray | None = None

    @property
    def observation_dim(self) -> int:
        return self.weights[0].shape[0]

    @property
    def action_dim(self) -> int:
        return self.weights[-1].shape[1]

    @property
    def continuous(self) -> bool:
        return self.log_std is not None


# What episodes are for. Each has seeds of its own, so that a policy is never judged by the episodes
# that it learned from, nor finally by those that chose it.
Stream = Literal["training", "validation", "evaluation"]


@dataclass(frozen=True)
class CollectRequest:
    """Which episodes are wanted. With the snapshot, it determines every bit of the answer.

    Attributes:
        env_id: the Gymnasium id.
        max_episode_steps: a time limit in steps that replaces the environment's own, or None.
        run_seed: the seed of the whole run.
        iteration: of the training loop, from 0.
        indices: which episodes of that iteration, ascending.
        policy_version: the snapshot that must act.
        simulator: "plain", "fast", or "auto" for a fast one where it gives the same bits.
        stream: what the episodes are for; it decides their seeds.
        explore: whether actions are sampled; otherwise each is the policy's mean, or its likeliest.
    """

    env_id: str
    max_episode_steps: int | None
    run_seed: int
    iteration: int
    indices: tuple[int, ...]
    policy_version: int
    simulator: str = "auto"
    stream: Stream = "training"
    explore: bool = True


@dataclass(frozen=True)
class Episode:
    """One complete episode.

    Attributes:
        index: its place in the iteration.
        observations: float32 [T+1, D], as the policy saw them; the last one was not acted on.
        actions: float32 [T, A] as sampled, before clipping to the bounds; int32 [T] if discrete.
        rewards: float64 [T].
        terminated: the environment ended it: nothing follows the last step.
        truncated: a time limit cut it: it would have gone on from `observations[-1]`.
    """

    index: int
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True)
class Episodes:
    """Complete episodes, one after another in the same arrays.

    `episodes[i]` is one of them, and a loop yields one after another: views, made as they are
    asked for, because an object and a handful of arrays cost as much as short episodes take.

    Attributes:
        index, terminated, truncated: int64, bool and bool [E], as in `Episode`.
        lengths: int64 [E], in steps.
        observations: float32 [N+E, D], of each episode one more than it has steps.
        actions: float32 [N, A], or int32 [N] if discrete.
        rewards: float64 [N].
    """

    index: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray

    @property
    def steps(self) -> int:
        """N."""
        return len(self.rewards)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> Episode:
        if not 0 <= place < len(self):
            raise IndexError(f"episode {place} of {len(self)}")
        return self._at(place, int(self.lengths[:place].sum()))

    def __iter__(self) -> Iterator[Episode]:
        starts = np.cumsum(self.lengths) - self.lengths
        return (self._at(place, start) for place, start in enumerate(starts.tolist()))

    def _at(self, place: int, start: int) -> Episode:
        stop = start + int(self.lengths[place])
        return Episode(
            index=int(self.index[place]),
            observations=self.observations[start + place : stop + place + 1],
            actions=self.actions[start:stop],
            rewards=self.rewards[start:stop],
            terminated=bool(self.terminated[place]),
            truncated=bool(self.truncated[place]),
        )


def joined(parts: Sequence[Episodes]) -> Episodes:
    """The episodes of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Episodes)
    }
    return Episodes(**columns)


FailureKind = Literal[
    "environment",  # it cannot be made: unknown, not importable, a space that cannot be learned
    "invalid",  # it returned NaN, infinity or the wrong shape
    "simulator",  # it raised
    "crash",  # the worker process died
    "timeout",  # the worker process did not answer in time
    "stale",  # the worker holds another version of the weights
    "garbled",  # the answer is not one to the request
    "transport",  # what carries tasks to workers failed
]


@dataclass(frozen=True)
class CollectFailure:
    """Why episodes did not come back: a value, because exceptions do not survive every transport.

    Attributes:
        kind: see `FailureKind`.
        message: one sentence with the cause and, where there is one, the remedy.
        env_id: which environment.
        iteration, index, step: where, as far as known.
        seed: the environment's reset seed in that episode, if known.
        traceback: the simulator's own, or the last words of a dead worker; may be empty.
    """

    kind: FailureKind
    message: str
    env_id: str
    iteration: int | None = None
    index: int | None = None
    step: int | None = None
    seed: int | None = None
    traceback: str = ""

    def __str__(self) -> str:
        where = [f"environment {self.env_id}"]
        for name in ("iteration", "index", "step", "seed"):
            value = getattr(self, name)
            if value is not None:
                label = "episode" if name == "index" else name
                where.append(f"{label} {value}")
        text = f"{self.message} ({', '.join(where)})"
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text
