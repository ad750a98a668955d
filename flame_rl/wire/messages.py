"""What travels between the learner and the actors.

Everything here is frozen and holds only NumPy arrays, plain values and the spaces of Gymnasium;
`flame_rl.wire.codec` turns it to bytes and back. In the shapes, D is the width of a flattened
observation, A of a continuous action, F the number of factors of a factored one, T the number of
steps of an episode, E of episodes, N of their steps together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import gymnasium
import numpy as np
from gymnasium import spaces

# A network of more layers than this cannot travel.
MAX_LAYERS = 64


@dataclass(frozen=True)
class Environment:
    """Which environment is played, and how.

    Attributes:
        env_id: the Gymnasium id, `module:Name-v0` for a user's own.
        max_episode_steps: a time limit in steps that replaces the environment's own, or None.
        simulator: "plain", "fast", or "auto" for a fast one where it gives the same bits.
    """

    env_id: str
    max_episode_steps: int | None = None
    simulator: str = "auto"


@dataclass(frozen=True)
class EnvironmentSpec:
    """What the learner must know of an environment.

    Attributes:
        env_id: the Gymnasium id, `module:Name-v0` for a user's own.
        observation_space: Box, Discrete, MultiDiscrete or MultiBinary, or Dict and Tuple of them.
        action_space: Box, Discrete, MultiDiscrete or MultiBinary.
        note: one line on why the environment's fast simulator is not used; else empty.
    """

    env_id: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    note: str = ""

    @property
    def observation_dim(self) -> int:
        """D, the width of a flattened observation."""
        return spaces.flatdim(self.observation_space)

    @property
    def continuous(self) -> bool:
        """Whether actions are real vectors."""
        return isinstance(self.action_space, spaces.Box)

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of choices of each factor of an action; empty for continuous actions."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return (int(space.n),)
        if isinstance(space, spaces.MultiDiscrete):
            return tuple(space.nvec.ravel().tolist())
        if isinstance(space, spaces.MultiBinary):
            return (2,) * int(np.prod(space.shape))
        return ()

    @property
    def action_dim(self) -> int:
        """A for continuous actions; otherwise the number of logits, one for each choice."""
        return int(np.prod(self.action_space.shape)) if self.continuous else sum(self.choices)


@dataclass(frozen=True)
class Layer:
    """A layer or a head of a policy.

    Attributes:
        kind: a name in `flame_rl.actor.policy.layers.LAYERS` or, of a head, in
            `flame_rl.actor.policy.heads.HEADS`, which say what arrays each kind has.
        arrays: float32, or int32 where the kind says so, by name.
    """

    kind: str
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class PolicySnapshot:
    """The acting part of a policy: its network, and how to act by the network's output.

    Attributes:
        version: the number of updates that these weights have had; actors refuse any other
            version than the one that the request names.
        layers: from the observation to the output, at most `MAX_LAYERS`.
        head: turns the output to an action.
    """

    version: int
    layers: tuple[Layer, ...]
    head: Layer


# What episodes are for. Each has seeds of its own, so that a policy is never judged by the episodes
# that it learned from, nor finally by those that chose it.
Stream = Literal["training", "validation", "evaluation"]


@dataclass(frozen=True)
class Column:
    """What is recorded of every step under one name.

    Attributes:
        name: "observations", say.
        dtype: NumPy's name of the type, "float32".
        shape: of one row.
        per_observation: whether an episode of T steps has T+1 rows, one for each observation;
            otherwise it has T.
        choices: of integers, how many values each may have, from 0; for a row of several numbers
            one entry each. Empty: any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    per_observation: bool
    choices: tuple[int, ...] = ()


@dataclass(frozen=True)
class CollectRequest:
    """Which episodes are wanted. With the snapshot, it determines every bit of the answer.

    Attributes:
        environment: what is played.
        run_seed: the seed of the whole run.
        iteration: of the training loop, from 0.
        indices: which episodes of that iteration, ascending.
        policy_version: the snapshot that must act.
        columns: what is recorded of every step; see `flame_rl.wire.steps.step_columns`.
        stream: what the episodes are for; it decides their seeds.
        explore: whether actions are sampled; otherwise each is the policy's mean, or its likeliest.
    """

    environment: Environment
    run_seed: int
    iteration: int
    indices: tuple[int, ...]
    policy_version: int
    columns: tuple[Column, ...]
    stream: Stream = "training"
    explore: bool = True


@dataclass(frozen=True)
class Episode:
    """One complete episode.

    Attributes:
        index: its place in the iteration.
        columns: what was recorded of each step, by the column's name: [T+1, ...] or [T, ...].
        terminated: the environment ended it: nothing follows the last step.
        truncated: a time limit cut it: it would have gone on from `observations[-1]`.
    """

    index: int
    columns: dict[str, np.ndarray]
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def observations(self) -> np.ndarray:
        """float32 [T+1, D], flattened, as the policy saw them; the last one was not acted on."""
        return self.columns["observations"]

    @property
    def actions(self) -> np.ndarray:
        """float32 [T, A] as sampled, before clipping to the bounds; int32 [T] or [T, F], from 0, if
        they are choices."""
        return self.columns["actions"]

    @property
    def rewards(self) -> np.ndarray:
        """float64 [T]."""
        return self.columns["rewards"]


@dataclass(frozen=True)
class Episodes:
    """Complete episodes, one after another in the same arrays.

    `episodes[i]` is one of them, and a loop yields one after another: views, made as they are
    asked for, because an object and a handful of arrays cost as much as short episodes take.

    Attributes:
        index, terminated, truncated: int64, bool and bool [E], as in `Episode`.
        lengths: int64 [E], in steps.
        columns: the episodes' steps by the column's name, [N+E, ...] for what there is of every
            observation, otherwise [N, ...].
    """

    index: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    columns: dict[str, np.ndarray]

    @property
    def steps(self) -> int:
        """N."""
        return int(self.lengths.sum())

    @property
    def observations(self) -> np.ndarray:
        """float32 [N+E, D], of each episode one more than it has steps."""
        return self.columns["observations"]

    @property
    def actions(self) -> np.ndarray:
        """float32 [N, A], int32 [N] or int32 [N, F]."""
        return self.columns["actions"]

    @property
    def rewards(self) -> np.ndarray:
        """float64 [N]."""
        return self.columns["rewards"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> Episode:
        if not 0 <= place < len(self):
            raise IndexError(f"episode {place} of {len(self)}")
        return self._at(place, int(self.lengths[:place].sum()), self._parts())

    def __iter__(self) -> Iterator[Episode]:
        starts, parts = np.cumsum(self.lengths) - self.lengths, self._parts()
        return (self._at(place, start, parts) for place, start in enumerate(starts.tolist()))

    def first(self, count: int) -> Episodes:
        """The first `count` of them."""
        steps = int(self.lengths[:count].sum())
        return Episodes(
            index=self.index[:count],
            lengths=self.lengths[:count],
            terminated=self.terminated[:count],
            truncated=self.truncated[:count],
            columns={
                name: array[: steps + count if per_observation else steps]
                for name, array, per_observation in self._parts()
            },
        )

    def _parts(self) -> list[tuple[str, np.ndarray, bool]]:
        """Of each column: its name, its array, and whether it has a row for each observation."""
        steps = self.steps
        return [(name, array, len(array) != steps) for name, array in self.columns.items()]

    def _at(self, place: int, start: int, parts: list[tuple[str, np.ndarray, bool]]) -> Episode:
        stop = start + int(self.lengths[place])
        steps, observations = slice(start, stop), slice(start + place, stop + place + 1)
        return Episode(
            index=int(self.index[place]),
            columns={
                name: array[observations if per_observation else steps]
                for name, array, per_observation in parts
            },
            terminated=bool(self.terminated[place]),
            truncated=bool(self.truncated[place]),
        )


def joined(parts: Sequence[Episodes]) -> Episodes:
    """The episodes of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    names = ("index", "lengths", "terminated", "truncated")
    return Episodes(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
        columns={
            name: np.concatenate([part.columns[name] for part in parts])
            for name in parts[0].columns
        },
    )


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
