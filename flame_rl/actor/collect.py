"""Collect episodes: the way from weights to actions to rewards.

An episode is a function of the weights, the run's seed, the iteration and the episode's index, and
of nothing else: not of its neighbours, the worker, the machine or the order of completion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.policy.acting import ActingPolicy
from flame_rl.actor.policy.layers import ROW_BLOCK
from flame_rl.actor.random.noise import Noise
from flame_rl.actor.random.seeds import episodes_randomness
from flame_rl.actor.recording import Block, cut_out, new_block
from flame_rl.actor.simulators.protocol import Simulator, rows_of
from flame_rl.wire.messages import (
    CollectFailure,
    CollectRequest,
    Column,
    Episodes,
    PolicySnapshot,
)

# So many lock steps are recorded, and noise for them drawn ahead, before episodes are taken out.
BLOCK_STEPS = 128
# Fewer where observations are so wide that a block of them would take more bytes than this.
BLOCK_BYTES = 1 << 25


def collect_episodes(
    snapshot: PolicySnapshot,
    request: CollectRequest,
    simulator: Simulator,
    withdrawn: Callable[[], bool] = lambda: False,
) -> Episodes | CollectFailure:
    """Play the requested episodes side by side; a finished slot takes the next one at once.

    Args:
        snapshot: the policy that acts.
        request: which episodes; its environment must be the simulator's.
        simulator: used from a reset on, so that what it did before is without effect.
        withdrawn: asked at every step; true when nobody wants the answer any more.

    Returns:
        The episodes in the order of `request.indices`, or why they could not be played.
    """
    if snapshot.version != request.policy_version:
        return _failure(
            request,
            "stale",
            f"weights of version {request.policy_version} are asked for, "
            f"but version {snapshot.version} is here",
        )
    policy = ActingPolicy(snapshot)
    reason = _why_not_recorded(request.columns, policy, simulator)
    if reason is not None:
        return _failure(request, "garbled", reason)
    play = _Play(policy, request, simulator)
    try:
        play.begin()
        while play.goes_on:
            if withdrawn():
                return _failure(request, "stale", "the learner has withdrawn this task")
            play.step()
    except SimulatorError as error:
        index, step, seed = play.where(error.slot)
        return CollectFailure(
            kind=error.kind,
            message=str(error),
            env_id=request.environment.env_id,
            iteration=request.iteration,
            index=index,
            step=step,
            seed=seed,
            traceback=error.cause,
        )
    return play.episodes()


class _Play:
    """One request being played.

    In a lock step all slots see, act and are stepped, each in an episode of its own. Episodes
    begin and end at any lock step; when all have ended, they are cut out of what was recorded.
    """

    def __init__(self, policy: ActingPolicy, request: CollectRequest, simulator: Simulator) -> None:
        self._simulator = simulator
        self._policy = policy
        self._columns = request.columns
        count = len(request.indices)
        slots = min(simulator.slots, count)
        width = _padded(slots)
        # Of each episode.
        self._index = np.array(request.indices, np.int64)
        self._seeds, words = episodes_randomness(
            request.run_seed, request.iteration, request.indices, request.stream
        )
        simulator.expect(self._seeds)
        self._slot = np.zeros(count, np.int64)
        self._first = np.zeros(count, np.int64)
        self._lengths = np.zeros(count, np.int64)
        self._terminated = np.zeros(count, bool)
        self._truncated = np.zeros(count, bool)
        self._last = {
            column.name: np.zeros((count, *column.shape), column.dtype)
            for column in request.columns
            if column.per_observation
        }
        self._ends = [(last, _source(simulator, name)) for name, last in self._last.items()]
        # The episode of each slot, and how many have begun.
        self._episode = np.full(width, -1)
        self._begun = 0

        widest = max(math.prod(c.shape) * np.dtype(c.dtype).itemsize for c in request.columns)
        steps = BLOCK_BYTES // (width * widest)
        self._steps = max(1, min(BLOCK_STEPS, steps))
        self._width = width
        self._noise = Noise(policy, words, self._steps, width) if request.explore else None
        self._blocks: list[Block] = []
        self._set_running(np.arange(slots))
        self._block = self._new_block(0)
        self._row = 0

    @property
    def goes_on(self) -> bool:
        return len(self._running) > 0

    def begin(self) -> None:
        self._begin_episodes(self._running)

    def step(self) -> None:
        """One step of every running episode, and what follows from it."""
        if self._row == self._steps:
            self._next_block()
        row, live, simulator = self._row, self._live, self._simulator
        actions = self._actions[row]
        for recorded, source in self._seen:
            recorded[row, live] = source[live]
        rows = self._acting
        noise = None if self._noise is None else self._noise.need(row)[rows]
        actions[rows] = self._policy.act(simulator.observations[rows], noise)
        simulator.step(actions, self._running)
        for recorded, source in self._done:
            recorded[row, live] = source[live]
        self._check_finite("reward", simulator.rewards[live], "step", self._running)
        self._check_finite("observation", simulator.observations[live], "step", self._running)
        self._row = row + 1
        ended = simulator.terminated[live] | simulator.truncated[live]
        if ended.any():
            self._end_episodes(self._running[ended])

    def episodes(self) -> Episodes:
        """All of them, after the last one's end."""
        self._keep_block()
        return Episodes(
            index=self._index,
            lengths=self._lengths,
            terminated=self._terminated,
            truncated=self._truncated,
            columns=cut_out(
                self._blocks, self._columns, self._slot, self._first, self._lengths, self._last
            ),
        )

    def where(self, slot: int | None) -> tuple[int | None, int | None, int | None]:
        """Index, step and reset seed of the episode in `slot`, as far as there is one."""
        if slot is None or self._episode[slot] < 0:
            return None, None, None
        episode = self._episode[slot]
        step = self._lock_step - self._first[episode]
        return int(self._index[episode]), int(step), int(self._seeds[episode])

    @property
    def _lock_step(self) -> int:
        return self._block.first + self._row

    def _begin_episodes(self, slots: np.ndarray) -> None:
        episodes = np.arange(self._begun, self._begun + len(slots))
        self._begun += len(slots)
        self._episode[slots] = episodes
        self._slot[episodes] = slots
        self._first[episodes] = self._lock_step
        if self._noise is not None:
            self._noise.begin(self._row, slots, episodes)
        simulator = self._simulator
        simulator.reset(slots, self._seeds[episodes])
        self._check_finite("observation", simulator.observations[slots], "reset", slots)

    def _end_episodes(self, slots: np.ndarray) -> None:
        episodes, simulator = self._episode[slots], self._simulator
        self._lengths[episodes] = self._lock_step - self._first[episodes]
        for last, source in self._ends:
            last[episodes] = source[slots]
        self._terminated[episodes] = simulator.terminated[slots]
        self._truncated[episodes] = simulator.truncated[slots]
        taken = slots[: len(self._index) - self._begun]
        if len(taken):
            self._begin_episodes(taken)
        if len(taken) < len(slots):
            left = slots[len(taken) :]
            if self._noise is not None:
                self._noise.end(left)
            self._set_running(np.setdiff1d(self._running, left))

    def _next_block(self) -> None:
        self._keep_block()
        self._block = self._new_block(self._lock_step)
        self._row = 0
        if self._noise is not None:
            self._noise.next_block()

    def _keep_block(self) -> None:
        self._blocks.append(self._block.of(self._played))

    def _new_block(self, first: int) -> Block:
        self._played = self._running
        block = new_block(self._columns, first, self._steps, self._width)
        # Actions are written where they are recorded, unless they are not.
        head = self._policy.head
        self._actions = block.columns.get("actions")
        if self._actions is None:
            self._actions = np.zeros((self._steps, self._width, *head.shape), head.dtype)
        # Observations are recorded before the step that changes them.
        self._seen, self._done = (
            [
                (block.columns[column.name], _source(self._simulator, column.name))
                for column in self._columns
                if column.name != "actions" and column.per_observation == before
            ]
            for before in (True, False)
        )
        return block

    def _set_running(self, slots: np.ndarray) -> None:
        """Which slots play, and for which rows the policy acts: as few as possible."""
        self._running = slots
        self._live = rows_of(slots)
        if len(slots) == 0:
            return
        padded = _padded(len(slots))
        self._acting: slice | np.ndarray = slice(0, padded)
        if padded < self._width:
            # Padded with slots that play already, so that their actions are only written twice.
            self._acting = np.resize(slots, padded)

    def _check_finite(self, name: str, values: np.ndarray, source: str, slots: np.ndarray) -> None:
        if np.isfinite(values).all():
            return
        rows = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        first = int(np.argmin(rows))
        raise SimulatorError(
            "invalid",
            f"{name}: {source} returned NaN or infinity: {values[first]!s:.200}",
            int(slots[first]),
        )


def _source(simulator: Simulator, name: str) -> np.ndarray:
    """Where a column's values of each slot are when a step is recorded; always the same array."""
    return {"observations": simulator.observations, "rewards": simulator.rewards}[name]


def _why_not_recorded(
    columns: Sequence[Column], policy: ActingPolicy, simulator: Simulator
) -> str | None:
    """What of the request does not fit policy and simulator, or None."""
    if simulator.observations.shape[1] != policy.observation_dim:
        return (
            f"the policy is for observations of {policy.observation_dim} numbers, and these have "
            f"{simulator.observations.shape[1]}"
        )
    # Type and shape of a row, and whether there is one for each observation.
    known = {
        "observations": ("float32", (policy.observation_dim,), True),
        "actions": (policy.head.dtype, policy.head.shape, False),
        "rewards": ("float64", (), False),
    }
    for column in columns:
        if column.name not in known:
            return f"column {column.name[:40]!r} is none of {', '.join(known)}"
        dtype, shape, per_observation = known[column.name]
        if column.shape != shape or column.dtype != dtype:
            return (
                f"column {column.name}: {column.dtype} of shape {column.shape} is asked for where "
                f"there is {dtype} of shape {shape}"
            )
        if column.per_observation != per_observation:
            return f"column {column.name}: only observations have a row more than there are steps"
    return None


def _padded(rows: int) -> int:
    return -(-rows // ROW_BLOCK) * ROW_BLOCK


def _failure(request: CollectRequest, kind: str, message: str) -> CollectFailure:
    return CollectFailure(
        kind=kind, message=message, env_id=request.environment.env_id, iteration=request.iteration
    )
