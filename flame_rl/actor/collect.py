"""Collect episodes: the way from weights to actions to rewards.

An episode is a function of the weights, the run's seed, the iteration and the episode's index, and
of nothing else: not of its neighbours, the worker, the machine or the order of completion.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flame_rl.actor.policy import ROW_BLOCK, ActingPolicy
from flame_rl.actor.seeds import episodes_randomness
from flame_rl.actor.simulators import Simulator, SimulatorError, rows_of
from flame_rl.messages import CollectFailure, CollectRequest, Episode, PolicySnapshot

# So many lock steps are recorded, and noise for them drawn ahead, before episodes are taken out.
BLOCK_STEPS = 128
# Fewer where observations are so wide that a block of them would take more bytes than this.
BLOCK_BYTES = 1 << 25


def collect_episodes(
    snapshot: PolicySnapshot,
    request: CollectRequest,
    simulator: Simulator,
    withdrawn: Callable[[], bool] = lambda: False,
) -> list[Episode] | CollectFailure:
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
    play = _Play(snapshot, request, simulator)
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
            env_id=request.env_id,
            iteration=request.iteration,
            index=index,
            step=step,
            seed=seed,
            traceback=error.cause,
        )
    return [play.finished[index] for index in request.indices]


class _Slot:
    """The episode that a slot plays.

    Attributes:
        index, seed, generator: see `flame_rl.actor.seeds.episode_randomness`.
        first: the row of the block in which its part of the block begins.
        pieces: observations, actions and rewards of earlier blocks.
        length: steps in `pieces`.
    """

    __slots__ = ("first", "generator", "index", "length", "pieces", "seed")

    def __init__(self, index: int, seed: int, generator: np.random.Generator, first: int) -> None:
        self.index = index
        self.seed = seed
        self.generator = generator
        self.first = first
        self.pieces: list[tuple[np.ndarray, ...]] = []
        self.length = 0


class _Play:
    """One request being played.

    A lock step is one row of the block: what all slots saw, drew, did and got. Episodes begin and
    end at any row; where one ends, or the block does, its part is cut out.
    """

    def __init__(
        self, snapshot: PolicySnapshot, request: CollectRequest, simulator: Simulator
    ) -> None:
        self.finished: dict[int, Episode] = {}
        self._simulator = simulator
        self._policy = policy = ActingPolicy(snapshot)
        seeds, generators = episodes_randomness(
            request.run_seed, request.iteration, request.indices, request.stream
        )
        simulator.expect(seeds)
        self._waiting = list(zip(request.indices, seeds, generators, strict=True))[::-1]
        self._slots: dict[int, _Slot] = {}
        count = min(simulator.slots, len(request.indices))
        width = _padded(count)
        steps = BLOCK_BYTES // (4 * width * policy.observation_dim)
        self._steps = steps = max(1, min(BLOCK_STEPS, steps))
        self._observations = np.zeros((steps + 1, width, policy.observation_dim), np.float32)
        if policy.continuous:
            self._actions = np.zeros((steps, width, policy.action_dim), np.float32)
        else:
            self._actions = np.zeros((steps, width), np.int32)
        self._rewards = np.zeros((steps, width), np.float64)
        # Without exploring there is none.
        self._noise = np.zeros((steps, width, policy.noise_dim if request.explore else 0))
        self._explores = request.explore
        self._row = 0
        self._set_running(np.arange(count))

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
        actions, rows = self._actions[row], self._acting
        noise = self._noise[row][rows] if self._explores else None
        actions[rows] = self._policy.act(self._observations[row][rows], noise)
        simulator.step(actions, self._running)
        self._rewards[row, live] = simulator.rewards[live]
        self._observations[row + 1, live] = simulator.observations[live]
        self._check_finite("reward", self._rewards[row, live], "step")
        self._check_finite("observation", self._observations[row + 1, live], "step")
        self._row = row + 1
        ended = simulator.terminated[live] | simulator.truncated[live]
        if ended.any():
            self._end_episodes(self._running[ended])

    def where(self, slot: int | None) -> tuple[int | None, int | None, int | None]:
        """Index, step and reset seed of the episode in `slot`, as far as there is one."""
        episode = self._slots.get(slot)
        if episode is None:
            return None, None, None
        return episode.index, episode.length + self._row - episode.first, episode.seed

    def _begin_episodes(self, slots: np.ndarray) -> None:
        row = self._row
        for slot in slots.tolist():
            episode = _Slot(*self._waiting.pop(), first=row)
            self._slots[slot] = episode
            self._draw_noise(row, slot)
        self._simulator.reset(slots, [self._slots[slot].seed for slot in slots.tolist()])
        self._observations[row, slots] = self._simulator.observations[slots]
        self._check_finite("observation", self._observations[row, slots], "reset", slots)

    def _end_episodes(self, slots: np.ndarray) -> None:
        for slot in slots.tolist():
            episode = self._slots[slot]
            parts = self._cut(slot, episode, self._row + 1)
            if episode.pieces:
                parts = [np.concatenate(each) for each in zip(*episode.pieces, parts, strict=True)]
            self.finished[episode.index] = Episode(
                episode.index,
                *parts,
                terminated=bool(self._simulator.terminated[slot]),
                truncated=bool(self._simulator.truncated[slot]),
            )
        taken = slots[: len(self._waiting)]
        if len(taken):
            self._begin_episodes(taken)
        if len(taken) < len(slots):
            self._set_running(np.setdiff1d(self._running, slots[len(taken) :]))

    def _next_block(self) -> None:
        for slot in self._running.tolist():
            episode = self._slots[slot]
            episode.pieces.append(self._cut(slot, episode, self._row))
            episode.length += self._row - episode.first
            episode.first = 0
            self._draw_noise(0, slot)
        self._observations[0] = self._observations[self._row]
        self._row = 0

    def _draw_noise(self, row: int, slot: int) -> None:
        """For the rows from `row` on; how many are drawn at a time changes no number."""
        if self._explores:
            generator = self._slots[slot].generator
            self._noise[row:, slot] = self._policy.draw_noise(generator, self._steps - row)

    def _cut(self, slot: int, episode: _Slot, stop: int) -> tuple[np.ndarray, ...]:
        """Copies of the block's observations up to row `stop`, actions and rewards up to now."""
        steps = slice(episode.first, self._row)
        return (
            self._observations[episode.first : stop, slot].copy(),
            self._actions[steps, slot].copy(),
            self._rewards[steps, slot].copy(),
        )

    def _set_running(self, slots: np.ndarray) -> None:
        """Which slots play, and for which rows the policy acts: as few as possible."""
        self._running = slots
        self._live = rows_of(slots)
        if len(slots) == 0:
            return
        padded = _padded(len(slots))
        self._acting: slice | np.ndarray = slice(0, padded)
        if padded < self._rewards.shape[1]:
            # Padded with slots that play already, so that their actions are only written twice.
            self._acting = np.resize(slots, padded)

    def _check_finite(
        self, name: str, values: np.ndarray, source: str, slots: np.ndarray | None = None
    ) -> None:
        if np.isfinite(values).all():
            return
        rows = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        first = int(np.argmin(rows))
        raise SimulatorError(
            "invalid",
            f"{name}: {source} returned NaN or infinity: {values[first]!s:.200}",
            int((self._running if slots is None else slots)[first]),
        )


def _padded(rows: int) -> int:
    return -(-rows // ROW_BLOCK) * ROW_BLOCK


def _failure(request: CollectRequest, kind: str, message: str) -> CollectFailure:
    return CollectFailure(
        kind=kind, message=message, env_id=request.env_id, iteration=request.iteration
    )
