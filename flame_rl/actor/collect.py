"""Collect episodes: a policy acts in a simulator, and every step is recorded. An episode is a
function of the weights, the run's seed, the iteration and the episode's index alone. Agents that
play together have a slot and an episode each; one that ends early waits for the others."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from flame_rl.actor.failure import SimulatorError, invalid
from flame_rl.actor.fragments import choose_slots, play_again, starts_after, steps_done
from flame_rl.actor.randomness import Noise, seed_of
from flame_rl.actor.simulators.forked import end_if_forked
from flame_rl.actor.simulators.simulator import Simulator, as_rows
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import CollectFailure, CollectRequest, Episodes, PolicySnapshot, Start

BLOCK_STEPS = 128  # lock steps in a block, the unit in which steps are recorded and noise is drawn
BLOCK_BYTES = 1 << 25  # the most bytes of one column of a block; wide columns make blocks shorter
TELL_SECONDS = 0.2  # the time between two reports of progress


def collect_episodes(
    snapshot: PolicySnapshot,
    request: CollectRequest,
    simulator: Simulator,
    withdrawn: Callable[[], bool] = lambda: False,
    played: Callable[[int, int], None] = lambda episodes, env_steps: None,
) -> Episodes | CollectFailure:
    """Play the requested episodes side by side; where one ends, its slot takes the next at once.
    The simulator must be of the request's environment; its earlier state has no effect. Returns the
    episodes in the order of `request.indices`, or why they could not be played. `withdrawn` is
    called at every lock step; true when the answer is no longer wanted. `played` is called every
    `TELL_SECONDS` with the numbers of episodes and env steps so far."""
    env_id, iteration = request.environment.env_id, request.iteration
    failure = functools.partial(CollectFailure, env_id=env_id, iteration=iteration)
    if (wanted := request.policy_version) != (here := snapshot.version):
        text = f"weights of version {wanted} are asked for, but version {here} is here"
        return failure("stale", text)
    policy = ActingPolicy(snapshot)
    if reason := _mismatch(request, policy, simulator):
        return failure("garbled", reason)
    play, process = _Play(policy, request, simulator, withdrawn), os.getpid()
    last_report = time.monotonic()
    try:
        play.begin_episodes(play.first_slots)
        while len(play.running) > 0:
            if withdrawn():
                return failure("stale", "the learner has withdrawn this task")
            play.step()
            end_if_forked(process)
            if (now := time.monotonic()) - last_report >= TELL_SECONDS:
                last_report = now
                played(play.ended, play.env_steps)
    except SimulatorError as error:
        end_if_forked(process)
        return failure(error.kind, str(error), traceback=error.cause, **play.where(error.slot))
    return play.episodes()


class _Play:
    """The episodes of one request, while they are played. In a lock step, every running slot
    observes, acts and steps, each in an episode of its own. Where K agents play together, every K
    slots are a group, and so are every K episodes. `running`: int [n], the slots that play,
    ascending. `ended`, `env_steps`: the numbers of ended episodes and of env steps. `_set_running`
    sets `_live` and `_acting`, the rows that step and act; `_new_block` what is recorded where."""

    def __init__(
        self,
        policy: ActingPolicy,
        request: CollectRequest,
        simulator: Simulator,
        withdrawn: Callable[[], bool],
    ) -> None:
        self._policy, self._simulator = policy, simulator
        self._request, self._withdrawn = request, withdrawn
        self._columns = request.columns
        finite = {"reward": simulator.rewards, "reward parts": simulator.reward_parts}
        finite |= {"outcomes": simulator.outcomes, "observation": simulator.observations}
        self._finite = [(name, array) for name, array in finite.items() if array.size]
        self._agents = agents = request.agents
        count = len(request.indices) * agents
        slots = min(simulator.slots // agents * agents, count)
        # Those of the first episodes, in their order.
        self.first_slots = choose_slots(simulator, self._starts_of(range(slots)))
        width = _round_up(int(self.first_slots.max()) + 1)
        # Of each episode: index, seed, slot, first lock step, length, how it ended; `_last`: the
        # last row of each column that has a row per observation.
        self._index = np.array(request.indices, np.int64).repeat(agents)
        seeds = [seed_of(request, index) for index in request.indices]
        self._seeds = np.array(seeds, np.int64).repeat(agents)
        self._slot, self._first, self._lengths = np.zeros((3, count), np.int64)
        self._terminated, self._truncated = np.zeros((2, count), bool)
        self._last = {
            column.name: np.zeros((count, *column.shape), column.dtype)
            for column in request.columns
            if column.per_observation
        }
        # What else comes with an observation is given to the policy's head.
        others = self._last.keys() - {"observations"}
        self._seen = {name: simulator.recorded[name] for name in others}
        # The last episode of each slot, -1 for none, and the number of episodes that have begun.
        self._episode = np.full(width, -1)
        self._begun = 0
        self.ended = self.env_steps = 0

        widest = max(math.prod(c.shape) * np.dtype(c.dtype).itemsize for c in request.columns)
        self._steps = max(1, min(BLOCK_STEPS, BLOCK_BYTES // (width * widest)))
        self._width = width
        self._noise = Noise(policy, request, self._steps, width)
        self._states = policy.states(width)
        self._blocks: list[Block] = []
        self._set_running(np.sort(self.first_slots))
        self._block = self._new_block(0)
        self._row = 0

    def step(self) -> None:
        """Take one lock step, then end episodes and begin others in their slots."""
        if self._row == self._steps:
            self._blocks.append(self._block.of(self._block_slots))
            self._block, self._row = self._new_block(self._lock_step), 0
            self._noise.next_block()
        row, live, simulator = self._row, self._live, self._simulator
        actions, rows = self._actions[row], self._acting
        for recorded, source in self._before_step:
            recorded[row, live] = source[live]
        noise, seen = self._noise.of(row, rows), {n: a[rows] for n, a in self._seen.items()}
        observations = simulator.observations[rows]
        actions[rows] = self._policy.act(observations, noise, self._states, rows, seen)
        simulator.step(actions, self.running)
        for recorded, source in self._after_step:
            recorded[row, live] = source[live]
        for name, array in self._finite:
            self._check_finite(name, array[live], "step", self.running)
        self._row = row + 1
        self.env_steps += len(self.running)
        ended = simulator.terminated[live] | simulator.truncated[live]
        if (most := self._request.fragment_steps) is not None:
            ended |= self._lock_step - self._first[self._episode[self.running]] >= most
        if ended.any():
            self.ended += int(ended.sum())
            self._end_episodes(self.running[ended])

    def episodes(self) -> Episodes:
        """All episodes; call it once the last one has ended."""
        self._blocks.append(self._block.of(self._block_slots))
        ends = self._terminated, self._truncated
        episodes = Episodes(self._index, self._lengths, *ends, self._assemble())
        slots = {int(self._index[e]): slot for slot, e in enumerate(self._episode) if e >= 0}
        for index, start in starts_after(self._request, episodes).items():
            if index in slots:
                self._simulator.paused[slots[index]] = start
        return episodes

    def _assemble(self) -> dict[str, np.ndarray]:
        """The columns of all episodes, as in `Episodes`; frees the blocks."""
        slot, first, length = self._slot, self._first, self._lengths
        count, steps = len(length), int(length.sum())
        start = np.cumsum(length) - length
        whole = {}
        for column in self._columns:
            rows = steps + count if column.per_observation else steps
            whole[column.name] = np.empty((rows, *column.shape), column.dtype)
            if column.per_observation:
                # Every episode has one observation more than it has steps.
                end = start + length + np.arange(count)
                _rows(whole[column.name], 1)[end] = _rows(self._last[column.name], 1)
        while self._blocks:
            block = self._blocks.pop(0)
            height, width = next(iter(block.columns.values())).shape[:2]
            begin = np.maximum(first, block.first)
            count = np.minimum(first + length, block.first + height) - begin
            # The episodes that have steps in this block, and how many.
            here = np.flatnonzero(count > 0)
            begin, count = begin[here], count[here]
            ramp = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            place = np.searchsorted(block.slots, slot[here])
            # Where each step is in the block, and where it goes.
            source = np.repeat((begin - block.first) * width + place, count) + ramp * width
            target = np.repeat(start[here] + begin - first[here], count) + ramp
            with_last = target + np.repeat(here, count)
            for column in self._columns:
                rows = with_last if column.per_observation else target
                _rows(whole[column.name], 1)[rows] = _rows(block.columns[column.name], 2)[source]
        return whole

    def where(self, slot: int | None) -> dict[str, int]:
        """The index, step and reset seed of the episode in `slot`; empty without one."""
        if slot is None or self._episode[slot] < 0:
            return {}
        episode = self._episode[slot]
        index, seed = int(self._index[episode]), int(self._seeds[episode])
        (start,) = self._starts_of([int(episode)])
        before = 0 if start is None else len(start.actions)
        step = before + int(self._lock_step - self._first[episode])
        return {"index": index, "step": step, "seed": seed}

    def _starts_of(self, episodes: Iterable[int]) -> list[Start | None]:
        """Where these fragments begin; None at a reset."""
        request = self._request
        places = (episode // request.agents for episode in episodes)
        return [request.starts.get(request.indices[place]) for place in places]

    @property
    def _lock_step(self) -> int:
        return self._block.first + self._row

    def begin_episodes(self, slots: np.ndarray) -> None:
        episodes = np.arange(self._begun, self._begun + len(slots))
        self._begun += len(slots)
        self._episode[slots] = episodes
        self._slot[episodes] = slots
        self._first[episodes] = self._lock_step
        self._noise.begin(self._row, slots, episodes)
        self._states.begin(slots)
        simulator, starts, done = self._simulator, {}, {}
        if simulator.paused or self._request.starts:
            found = zip(slots.tolist(), self._starts_of(episodes.tolist()), strict=True)
            done = steps_done(simulator, starts := dict(found))
            starts = {slot: starts[slot] for slot in done if starts[slot] is not None}
            slots = np.array([slot for slot, steps in done.items() if steps == 0], np.int64)
        if len(slots):
            simulator.reset(slots, self._seeds[self._episode[slots]])
            self._check_finite("observation", simulator.observations[slots], "reset", slots)
        if starts:
            play_again(simulator, self._columns, starts, done, self._withdrawn)

    def _end_episodes(self, slots: np.ndarray) -> None:
        episodes, simulator = self._episode[slots], self._simulator
        self._lengths[episodes] = self._lock_step - self._first[episodes]
        for name, last in self._last.items():
            last[episodes] = simulator.recorded[name][slots]
        self._terminated[episodes] = simulator.terminated[slots]
        self._truncated[episodes] = simulator.truncated[slots]
        taken = self._free(slots)[: len(self._index) - self._begun]
        if len(taken):
            self.begin_episodes(taken)
        left = slots[len(taken) :]
        if self._agents > 1:
            left = np.setdiff1d(slots, taken)
            # Some of the taken slots have waited.
            self._set_running(np.union1d(self.running, taken))
            self._block_slots = np.union1d(self._block_slots, taken)
        if len(left):
            self._noise.end(left)
            self._set_running(np.setdiff1d(self.running, left))

    def _free(self, ended: np.ndarray) -> np.ndarray:
        """The slots of the groups in which no agent plays any more, now that these have ended."""
        if self._agents == 1:
            return ended
        playing = np.setdiff1d(self.running, ended)
        groups = np.setdiff1d(ended // self._agents, playing // self._agents)
        return (groups[:, None] * self._agents + np.arange(self._agents)).ravel()

    def _new_block(self, first: int) -> Block:
        self._block_slots = self.running
        shape = self._steps, self._width
        arrays = {c.name: np.zeros((*shape, *c.shape), c.dtype) for c in self._columns}
        block = Block(first, np.arange(self._width), arrays)
        # Actions are written straight into the block if they are recorded.
        head = self._policy.head
        self._actions = block.columns.get("actions")
        if self._actions is None:
            self._actions = np.zeros((*shape, *head.shape), head.dtype)
        # Observations are recorded before the step that overwrites them, rewards after it.
        self._before_step, self._after_step = (
            [
                (block.columns[column.name], self._simulator.recorded[column.name])
                for column in self._columns
                if column.name != "actions" and column.per_observation == before
            ]
            for before in (True, False)
        )
        return block

    def _set_running(self, slots: np.ndarray) -> None:
        """Set the slots that play and the rows that the policy acts for: whole `ROW_BLOCK`s."""
        self.running = slots
        self._live = as_rows(slots)
        if len(slots) == 0:
            return
        padded = _round_up(len(slots))
        self._acting: slice | np.ndarray = slice(0, padded)
        if padded < self._width:
            # Padded with slots that play: computed twice, with the same result.
            self._acting = np.resize(slots, padded)

    def _check_finite(self, name: str, values: np.ndarray, source: str, slots: np.ndarray) -> None:
        if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
            return
        first = int(np.argmin(finite.reshape(len(values), -1).all(axis=1)))
        text = f"{name}: {source} returned NaN or infinity: {values[first]!s:.200}"
        raise invalid(text, int(slots[first]))


def _mismatch(request: CollectRequest, policy: ActingPolicy, simulator: Simulator) -> str:
    """Why the request does not fit the policy and the simulator, or ""."""
    if request.agents != simulator.agents:
        return f"{request.agents} agents are asked for, and this environment has {simulator.agents}"
    if (width := simulator.observations.shape[1]) != (expected := policy.observation_dim):
        return f"the policy is for observations of {expected} numbers, and these have {width}"
    known = {n: (a.dtype, a.shape[1:], n == ACTION_MASKS) for n, a in simulator.recorded.items()}
    known["actions"] = policy.head.dtype, policy.head.shape, False
    # Bytes beside numbers lie as float32 in the simulator, and are recorded as bytes.
    known |= {column.name: (column.dtype, column.shape, True) for column in simulator.observed}
    for column in request.columns:
        if known.get(column.name) != (column.dtype, column.shape, column.per_observation):
            return f"column {column.name[:40]!r}: {column} is asked for, here are {known!s:.500}"
    return ""


def _round_up(rows: int) -> int:
    """The number of rows rounded up to a multiple of `ROW_BLOCK`."""
    return -(-rows // ROW_BLOCK) * ROW_BLOCK


@dataclass(frozen=True)
class Block:
    """What is recorded in S lock steps, from the one of number `first` on, in `slots`, int [W],
    ascending: arrays by column name, [S, W, ...]."""

    first: int
    slots: np.ndarray
    columns: dict[str, np.ndarray]

    def of(self, slots: np.ndarray) -> Block:
        """This block if `slots`, ascending, are more than half of its own, else a copy of them."""
        if 2 * len(slots) > len(self.slots):
            return self
        places = np.searchsorted(self.slots, slots)
        kept = {name: array[:, places] for name, array in self.columns.items()}
        return Block(self.first, slots, kept)


def _rows(array: np.ndarray, axes: int) -> np.ndarray:
    """A view with the first `axes` dimensions as one, each row as one opaque value, which NumPy
    gathers and scatters several times as fast."""
    count = math.prod(array.shape[:axes])
    if array.ndim == axes:
        return array.reshape(count)
    flat = array.reshape(count, -1)
    return flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
