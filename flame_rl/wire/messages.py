"""The messages between the learner and the actors.

Everything here is frozen and holds only NumPy arrays, plain values and the spaces of Gymnasium;
`flame_rl.wire.codec` turns it into bytes and back. In shapes, D is the width of a flattened
observation, A the width of a continuous action, F the number of factors of a discrete action, T the
number of steps of an episode, E the number of episodes, and N the number of steps of all E.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.wire.text import legible

# The most layers of a policy, activations included.
MAX_LAYERS = 64
# The most characters of a failure's two texts. In JSON a character may take twelve bytes.
MAX_MESSAGE_CHARACTERS = 10_000
MAX_TRACEBACK_CHARACTERS = 50_000


@dataclass(frozen=True)
class Environment:
    """Which environment is played, and how.

    Attributes:
        env_id: the Gymnasium id, `module:Name-v0` for a user's own; for several agents the name of
            PettingZoo's module, `pettingzoo.sisl.multiwalker_v9`.
        max_episode_steps: a time limit in steps that replaces the environment's own, or None.
        simulator: "plain", "fast", or "auto": the fast one where it gives the same bits.
        reward_parts: names of numbers in `info` that are recorded at every step.
        agent_number: whether each of several agents observes its own number, too.
    """

    env_id: str
    max_episode_steps: int | None = None
    simulator: str = "auto"
    reward_parts: tuple[str, ...] = ()
    agent_number: bool = False


@dataclass(frozen=True)
class EnvironmentSpec:
    """What the learner knows about an environment.

    Attributes:
        env_id: as in `Environment`.
        observation_space: Box, Discrete, MultiDiscrete or MultiBinary, or Dict and Tuple of them.
        action_space: Box, Discrete, MultiDiscrete or MultiBinary.
        note: one line on why the environment's fast simulator is not used; else empty.
        time_limit: steps after which Gymnasium's wrappers truncate an episode; None if none does.
        reward_shape: () where a reward is one number, (K,) where it is a vector.
        agents: the names of several agents, which share the spaces; empty: there is one agent.
    """

    env_id: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    note: str = ""
    time_limit: int | None = None
    reward_shape: tuple[int, ...] = ()
    agents: tuple[str, ...] = ()

    @property
    def agent_count(self) -> int:
        """The number of agents, each of which has an episode of its own in what they play."""
        return max(1, len(self.agents))

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
        kind: a name in `flame_rl.nets.layers.LAYERS` or, for a head, in
            `flame_rl.nets.heads.HEADS`; these declare the arrays of each kind.
        arrays: the parameters by name, float32, or int32 where the kind declares it.
    """

    kind: str
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class PolicySnapshot:
    """A policy's network, and the head that turns the network's output into actions.

    Attributes:
        version: the number of updates behind these weights; actors refuse a request that names
            another version.
        layers: in order from the observation to the output, at most `MAX_LAYERS`.
        head: turns the output into an action.
    """

    version: int
    layers: tuple[Layer, ...]
    head: Layer


# What episodes are used for. Streams share no seeds: the best policy is selected by validation
# episodes, which it was not trained on, and judged by evaluation episodes, by which it was not
# selected.
Stream = Literal["training", "validation", "evaluation"]


@dataclass(frozen=True)
class Column:
    """One array that is recorded at every step.

    Attributes:
        name: "observations", say.
        dtype: NumPy's name of the type, "float32".
        shape: the shape of one row.
        per_observation: whether an episode of T steps has T+1 rows, one for each observation;
            otherwise it has T.
        choices: for integers, the number of values, counted from 0, that each number of a row may
            have. Empty: not restricted.
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
        iteration: the training iteration, from 0.
        indices: which episodes of that iteration, ascending. Several agents play one together, and
            it becomes an episode of each, under the same index, agent by agent.
        policy_version: the version of the snapshot that must act.
        columns: what is recorded at every step; see `flame_rl.wire.steps.recorded_columns`.
        stream: what the episodes are for; it decides their seeds.
        explore: whether actions are sampled; otherwise each is the action without noise.
        agents: the number of agents in the environment.
    """

    environment: Environment
    run_seed: int
    iteration: int
    indices: tuple[int, ...]
    policy_version: int
    columns: tuple[Column, ...]
    stream: Stream = "training"
    explore: bool = True
    agents: int = 1


@dataclass(frozen=True)
class Episode:
    """One complete episode, of one agent.

    Attributes:
        index: its number in the iteration, from 0; several agents that play together share it.
        columns: the recorded arrays by column name, [T+1, ...] or [T, ...].
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
        """float32 or uint8 [T+1, D], flattened, as the policy saw them; the last one was not acted
        on."""
        return self.columns["observations"]

    @property
    def actions(self) -> np.ndarray:
        """float32 [T, A] as sampled, before clipping to the bounds; if discrete, int32 [T] or
        [T, F], counted from 0."""
        return self.columns["actions"]

    @property
    def rewards(self) -> np.ndarray:
        """float64 [T]; [T, K] as they come from an environment whose reward is a vector."""
        return self.columns["rewards"]

    @property
    def reward_parts(self) -> np.ndarray:
        """float64 [T, P], the numbers that `Environment.reward_parts` names, if it names any."""
        return self.columns["reward_parts"]


@dataclass(frozen=True)
class Episodes:
    """Complete episodes, one after another in the same arrays.

    `episodes[i]` and iteration give each `Episode` as views, made on demand, because making them
    takes as long as playing short episodes.

    Attributes:
        index, terminated, truncated: int64, bool and bool [E], as in `Episode`.
        lengths: int64 [E], in steps.
        columns: the recorded arrays by column name, [N+E, ...] for a column with a row per
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
        """float32 or uint8 [N+E, D]: T+1 rows for each episode."""
        return self.columns["observations"]

    @property
    def actions(self) -> np.ndarray:
        """float32 [N, A], int32 [N] or int32 [N, F]."""
        return self.columns["actions"]

    @property
    def rewards(self) -> np.ndarray:
        """float64 [N]; [N, K] as they come from an environment whose reward is a vector."""
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

    def _parts(self) -> list[tuple[str, np.ndarray, bool]]:
        """The name and the array of each column, and whether it has a row per observation."""
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
    "environment",  # it cannot be made: unknown, not importable, a space of an unsupported kind
    "invalid",  # the environment returned NaN, infinity or the wrong shape
    "simulator",  # the environment raised an exception
    "crash",  # the worker process died while it played
    "start",  # the worker process died before it began to play
    "timeout",  # the worker process did not answer in time
    "stale",  # the worker holds other weights, or the learner has withdrawn the task
    "garbled",  # the answer does not fit the request, or the request not the policy
    "transport",  # a task or its answer was lost between the learner and the worker
]


@dataclass(frozen=True)
class CollectFailure:
    """Why episodes did not come back: a value, because exceptions do not survive every transport.

    Its texts are `legible`, wherever they come from.

    Attributes:
        kind: see `FailureKind`.
        message: one sentence with the cause and, where there is one, the remedy.
        env_id: the environment's id.
        iteration, index, step: where it failed, as far as known.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", legible(self.message, MAX_MESSAGE_CHARACTERS))
        object.__setattr__(self, "traceback", legible(self.traceback, MAX_TRACEBACK_CHARACTERS))

    def __str__(self) -> str:
        where = [f"environment {self.env_id}"]
        for name in ("iteration", "index", "step", "seed"):
            value = getattr(self, name)
            if value is not None:
                label = "episode" if name == "index" else name
                where.append(f"{label} {value}")
        text = f"{self.message} ({', '.join(where)})"
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text
