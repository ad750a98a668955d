"""The messages between the learner and the actors: frozen, of NumPy arrays, plain values and the
spaces of Gymnasium. `flame_rl.wire.fields` checks what is received by the annotations here. In
shapes, D is the width of a flattened observation, A that of a continuous action, F the number of
factors of a discrete one, T that of the steps of an episode, N those of E episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.wire.fields import Converted, Size, Whole, WireError, Within, value_from_data
from flame_rl.wire.spaces import MAX_PARTS, Shape, choices_of, space_from_data, space_to_data

# The column of an observation that is a single input; those of several begin with it.
OBSERVATIONS = "observations"
MAX_LAYERS = 64  # of a policy, activations included
_MAX_AGENTS = 1 << 16
_MAX_ROW_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Environment:
    """Which environment is played, and how."""

    env_id: str  # `Name-v0`, `module:Name-v0` or, for several agents, PettingZoo's module
    # A time limit that replaces its own; None: the default where it has none; 0: none but its own.
    max_episode_steps: Whole | None = None
    simulator: str = "auto"  # "plain", "fast", or "auto": fast where that gives the same bits
    reward_parts: tuple[str, ...] = ()  # names of numbers in `info`, recorded at every step
    agent_number: bool = False  # whether each of several agents observes its own number, too
    # As `reward_parts`, at an episode's last step; "a.b" is the entry "b" of the dictionary "a".
    outcomes: tuple[str, ...] = ()
    slots: Size | None = None  # the most episodes side by side in a process; None: as are worth it
    action_mask: bool = True  # whether the masks of allowed actions that it returns are read
    env_kwargs: tuple[str, ...] = ()  # of its constructor, "name=value" in JSON or Python
    wrapper: tuple[str, ...] = ()  # classes or functions, `module:Class`, the innermost first
    observe: tuple[str, ...] = ()  # the keys of a Dict that are observed; empty: all are


# Where masks of allowed actions are: nowhere, or under "action_mask" in the info or observation.
MaskSource = Literal["none", "info", "observation"]

_Space = Annotated[gymnasium.Space, Converted(space_from_data, space_to_data)]


@dataclass(frozen=True)
class EnvironmentSpec:
    """What the learner knows about an environment. Raises WireError if a space has no numbers, or
    two agents have one name."""

    env_id: str
    # Box, Discrete, MultiDiscrete or MultiBinary; only observations may be a Dict or Tuple of them.
    observation_space: _Space
    action_space: _Space
    note: str = ""  # a line for each thing that a user should know of it
    time_limit: Size | None = None  # of Gymnasium's wrappers, in steps; None if there is none
    reward_shape: Annotated[tuple[Size, ...], Within(0, 1)] = ()  # (K,) of a vector
    # The names of several agents, which share the spaces; empty: there is one agent.
    agents: Annotated[tuple[str, ...], Within(0, _MAX_AGENTS)] = ()
    differs: str = ""  # one line on how episodes with the same seed and actions differ
    action_mask: MaskSource = "none"  # where the masks of allowed actions are that are read
    slots: Size | None = None  # the environment's, or as memory allows; None of a fast simulator
    limited_by_default: bool = False  # whether nobody has set another time limit
    renders: bool = False  # whether its metadata name a way to draw it, in a window or as pictures

    def __post_init__(self) -> None:
        if self.observation_dim < 1:
            raise WireError("observation_space: it has no numbers")
        # Dict and Tuple have no shape, and cannot be action spaces.
        if self.action_space.shape is None or self.action_dim < 1:
            raise WireError("action_space: it has no numbers")
        if len(set(self.agents)) < len(self.agents):
            raise WireError("agents: a name comes twice")
        if self.masked and self.continuous:
            raise WireError("action_mask: continuous actions have none")

    @property
    def masked(self) -> bool:
        """Whether each observation comes with a mask of allowed actions."""
        return self.action_mask != "none"

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
        return choices_of(self.action_space)

    @property
    def action_dim(self) -> int:
        """A for continuous actions; otherwise the number of logits, one for each choice."""
        return int(np.prod(self.action_space.shape)) if self.continuous else sum(self.choices)


# Names in JSON, to which `codec.decode_snapshot` adds the arrays.
_NAMES = Converted(
    lambda data, name: dict.fromkeys(value_from_data(tuple[str, ...], data, name)), list
)


@dataclass(frozen=True)
class Layer:
    """A layer or a head of a policy. `kind`: a name in `flame_rl.nets.kinds.LAYERS` or `HEADS`,
    which declares the `arrays`, float32 or int32. `input`: after a layer of the kind "inputs", the
    place of the input that it acts on; None: all of them side by side."""

    kind: str
    arrays: Annotated[dict[str, np.ndarray], _NAMES]
    input: Whole | None = None


@dataclass(frozen=True)
class PolicySnapshot:
    """A policy's layers, in order from the observation to the output, and the head that turns the
    output into an action; `version` is the number of updates behind these weights."""

    version: Whole
    layers: Annotated[tuple[Layer, ...], Within(0, MAX_LAYERS)]
    head: Layer


# What episodes are used for; validation selects a policy, evaluation judges it. They share no seed.
Stream = Literal["training", "validation", "evaluation"]


@dataclass(frozen=True)
class Column:
    """One array that is recorded at every step; `shape` is that of one row. Raises WireError if its
    fields contradict each other. `per_observation`: whether T steps have T+1 rows, not T.
    `choices`: the number of values, counted from 0, of each integer of a row; empty: any."""

    name: str
    dtype: Literal["float32", "float64", "int32", "int64", "uint8"]
    shape: Shape
    per_observation: bool
    choices: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        numbers = math.prod(self.shape)
        if not 0 < numbers <= _MAX_ROW_NUMBERS:
            raise WireError(f"shape: {self.shape}: not 1 to {_MAX_ROW_NUMBERS} numbers")
        if self.choices and (len(self.choices) != numbers or not self.dtype.startswith("int")):
            raise WireError("choices: not one for each integer of a row")


@dataclass(frozen=True, eq=False)
class Start:
    """Where a fragment begins: some steps after an episode's reset with `seed`. `actions`: those
    since then, as recorded, [j, ...]. `observed`: a digest of the last observation, which tells
    whether they have led to the same state again. `so_far`: the sum of the rewards, for reports."""

    seed: Whole
    actions: np.ndarray
    observed: int
    so_far: float = 0.0


@dataclass(frozen=True)
class CollectRequest:
    """Which episodes are wanted. With the snapshot, it determines every bit of the answer. Raises
    WireError if two columns have one name, or fragments are of several agents."""

    environment: Environment
    run_seed: Whole
    iteration: Whole
    # Which episodes of the iteration, ascending. One that several `agents` play becomes an episode
    # of each, under the same index, agent by agent.
    indices: tuple[Whole, ...]
    policy_version: Whole  # of the snapshot that must act
    # What is recorded at every step; see `flame_rl.wire.inputs.step_columns`.
    columns: Annotated[tuple[Column, ...], Within(1, MAX_PARTS + 64)]
    stream: Stream = "training"
    explore: bool = True  # whether actions are sampled; otherwise each is that without noise
    agents: Annotated[int, Within(1, _MAX_AGENTS, f"from 1 to {_MAX_AGENTS}")] = 1
    # With a number, the episodes that are wanted are those from the first index on until their
    # lengths add up to it, and `indices` only those to begin with.
    steps: Whole | None = None
    # The most steps of a fragment, which is answered as an episode; None: episodes are whole.
    fragment_steps: Size | None = None
    # By index, where fragments begin that go on with an episode; the others begin one. They follow
    # from the other fields and from the iterations before.
    starts: dict[int, Start] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise WireError("columns: a name comes twice")
        if self.agents > 1 and (self.starts or self.fragment_steps is not None):
            raise WireError("fragment_steps: episodes of several agents are whole")


def observation_arrays(columns: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The columns of observations, one for each of their inputs, in order."""
    return [array for name, array in columns.items() if name.startswith(OBSERVATIONS)]


class _Recorded:
    """The columns that every environment has, of one episode or of several."""

    columns: dict[str, np.ndarray]

    @property
    def observations(self) -> np.ndarray:
        """float32 or uint8 [T+1, D] of an episode, [N+E, D] of several: flattened, the last one of
        an episode included. Several inputs are put side by side at each call, in float32."""
        inputs = observation_arrays(self.columns)
        return inputs[0] if len(inputs) == 1 else np.concatenate(inputs, axis=1, dtype=np.float32)

    @property
    def actions(self) -> np.ndarray:
        """As sampled: float32 [N, A], before they are clipped, or int32 [N] or [N, F], from 0."""
        return self.columns["actions"]

    @property
    def rewards(self) -> np.ndarray:
        """float64 [N], or [N, K] as they come where the environment's reward is a vector."""
        return self.columns["rewards"]


@dataclass(frozen=True)
class Episode(_Recorded):
    """One whole episode, or fragment of one, of one agent: N is T. `index`: its number in the
    iteration, which agents that play together share. `columns`: by name, [T+1, ...] or [T, ...].
    `terminated`: nothing follows the last step. `truncated`: a time limit cut it: it would have
    gone on from `observations[-1]`. A fragment that another one goes on with is neither."""

    index: int
    columns: dict[str, np.ndarray]
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        return len(self.rewards)


# The arrays of `Episodes` that have an entry for each episode, and their types.
ABOUT_EPISODES = {"index": "int64", "lengths": "int64", "terminated": "bool", "truncated": "bool"}


@dataclass(frozen=True)
class Episodes(_Recorded):
    """Episodes or fragments, one after another in the same arrays: `index`, `terminated`,
    `truncated` and `lengths`, int64, bool, bool and int64 [E], and columns [N+E, ...] or [N, ...].
    Iteration makes each `Episode` of views, which takes as long as playing a short one."""

    index: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    columns: dict[str, np.ndarray]

    @property
    def steps(self) -> int:
        return int(self.lengths.sum())

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Episode]:
        rows = self._rows()
        for place, index in enumerate(self.index.tolist()):
            ends = bool(self.terminated[place]), bool(self.truncated[place])
            yield Episode(index, rows(place, place + 1), *ends)

    def between(self, start: int, stop: int) -> Episodes:
        """The episodes from place `start` up to `stop`, as views."""
        about = {name: getattr(self, name)[start:stop] for name in ABOUT_EPISODES}
        return Episodes(**about, columns=self._rows()(start, stop))

    def _rows(self) -> Callable[[int, int], dict[str, np.ndarray]]:
        """A function that returns the columns of the episodes from one place up to another."""
        ends = [0, *np.cumsum(self.lengths).tolist()]
        # Whether an episode has a row more than steps.
        columns = [(name, array, len(array) > ends[-1]) for name, array in self.columns.items()]
        return lambda start, stop: {
            name: array[ends[start] + more * start : ends[stop] + more * stop]
            for name, array, more in columns
        }


def concatenate(batches: Sequence[Episodes]) -> Episodes:
    """The episodes of all batches, one batch after another."""
    if len(batches) == 1:
        return batches[0]
    about = {n: np.concatenate([getattr(batch, n) for batch in batches]) for n in ABOUT_EPISODES}
    names = batches[0].columns
    columns = {n: np.concatenate([batch.columns[n] for batch in batches]) for n in names}
    return Episodes(**about, columns=columns)


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
    Its texts are `legible`, wherever they come from."""

    kind: FailureKind
    message: str  # one sentence with the cause and, where there is one, the remedy
    env_id: str = ""  # which does not travel: who asked knows it
    iteration: Whole | None = None
    index: Whole | None = None
    step: Whole | None = None
    seed: Whole | None = None  # the environment's reset seed in that episode
    traceback: str = ""  # the simulator's own, or the last words of a dead worker

    def __post_init__(self) -> None:
        # In JSON a character may take twelve bytes.
        object.__setattr__(self, "message", legible(self.message, 10_000))
        object.__setattr__(self, "traceback", legible(self.traceback, 50_000))

    def __str__(self) -> str:
        known = {"environment": self.env_id, "iteration": self.iteration, "episode": self.index}
        known |= {"step": self.step, "seed": self.seed}
        where = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
        # That an environment cannot be made names it already.
        text = self.message if self.kind == "environment" else f"{self.message} ({where})"
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text


def legible(text: str, most: int) -> str:
    """A text of others (a simulator's exception, a dead worker's last words) for a terminal: cut in
    its middle to at most `most` characters, and with those that cannot be printed, which a terminal
    may obey, as Python's repr writes them; newline and tab stay."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
    if len(shown) <= most:
        return shown
    half = (most - 40) // 2  # 40 characters, at most, say what is cut
    return f"{shown[:half]} … {len(shown) - 2 * half} characters … {shown[-half:]}"
