"""Collect episodes: the way from weights to actions to rewards.

An episode is a function of the weights, the run's seed, the iteration and the episode's index, and
of nothing else: not of its neighbours, the worker, the machine or the order of completion.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flame_rl.actor.policy import ActingPolicy
from flame_rl.actor.simulators import SLOTS, PlainSimulator, SimulatorError
from flame_rl.messages import CollectFailure, CollectRequest, Episode, PolicySnapshot, Stream

# Noise is drawn ahead from the episode's own generator, this many steps at a time.
NOISE_STEPS = 128


# The two seeds of a training episode have the keys (iteration, index, 0) and (iteration, index, 1),
# which those of the other streams never meet.
_SPAWN_KEY_ENDS: dict[Stream, tuple[int, ...]] = {
    "training": (),
    "validation": (2,),
    "evaluation": (3,),
}


def episode_randomness(
    run_seed: int, iteration: int, index: int, stream: Stream = "training"
) -> tuple[int, np.random.Generator]:
    """The environment's reset seed and the generator of the actions' noise of one episode."""
    key = (iteration, index, *_SPAWN_KEY_ENDS[stream])
    sequence = np.random.SeedSequence(run_seed, spawn_key=key)
    reset_sequence, noise_sequence = sequence.spawn(2)
    # Gymnasium takes non-negative seeds; 31 bits suit environments that keep them in an int32.
    reset_seed = int(reset_sequence.generate_state(1, np.uint32)[0] >> 1)
    return reset_seed, np.random.default_rng(noise_sequence)


def collect_episodes(
    snapshot: PolicySnapshot,
    request: CollectRequest,
    simulator: PlainSimulator,
    withdrawn: Callable[[], bool] = lambda: False,
) -> list[Episode] | CollectFailure:
    """Play the requested episodes, `SLOTS` at a time; a finished slot takes the next one at once.

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
    waiting = list(reversed(request.indices))
    recorders: dict[int, _Recorder] = {}
    finished: dict[int, Episode] = {}

    def begin_next(slot: int) -> None:
        recorders[slot] = _Recorder(request, waiting.pop(), policy)
        simulator.reset(slot, recorders[slot].seed)
        recorders[slot].begin(simulator.observations[slot])

    noise = np.zeros((SLOTS, policy.noise_dim)) if request.explore else None
    running = list(range(min(SLOTS, len(waiting))))
    try:
        for slot in running:
            begin_next(slot)
        while running:
            if withdrawn():
                return _failure(request, "stale", "the learner has withdrawn this task")
            if noise is not None:
                for slot in running:
                    noise[slot] = recorders[slot].next_noise()
            actions = policy.act(simulator.observations, noise)
            simulator.step(actions, running)
            for slot in tuple(running):
                recorder = recorders[slot]
                recorder.record(
                    actions[slot], simulator.rewards[slot], simulator.observations[slot]
                )
                terminated = bool(simulator.terminated[slot])
                truncated = bool(simulator.truncated[slot])
                if not (terminated or truncated):
                    continue
                finished[recorder.index] = recorder.finish(slot, terminated, truncated)
                if waiting:
                    begin_next(slot)
                else:
                    running.remove(slot)
    except SimulatorError as error:
        blamed = recorders.get(error.slot)
        return CollectFailure(
            kind=error.kind,
            message=str(error),
            env_id=request.env_id,
            iteration=request.iteration,
            index=blamed.index if blamed else None,
            step=blamed.length if blamed else None,
            seed=blamed.seed if blamed else None,
            traceback=error.cause,
        )
    return [finished[index] for index in request.indices]


class _Recorder:
    """One running episode: its random numbers and what happened so far."""

    def __init__(self, request: CollectRequest, index: int, policy: ActingPolicy) -> None:
        self.index = index
        self.length = 0
        self.seed, self._generator = episode_randomness(
            request.run_seed, request.iteration, index, request.stream
        )
        self._policy = policy
        self._noise = np.empty((0, policy.noise_dim))
        capacity = 256
        self._observations = np.empty((capacity + 1, policy.observation_dim), np.float32)
        action_shape = (policy.action_dim,) if policy.continuous else ()
        action_dtype = np.float32 if policy.continuous else np.int32
        self._actions = np.empty((capacity, *action_shape), action_dtype)
        self._rewards = np.empty(capacity, np.float64)

    def begin(self, observation: np.ndarray) -> None:
        self._observations[0] = observation

    def next_noise(self) -> np.ndarray:
        row = self.length % NOISE_STEPS
        if row == 0:
            self._noise = self._policy.draw_noise(self._generator, NOISE_STEPS)
        return self._noise[row]

    def record(self, action_t: np.ndarray, reward_t: float, observation_tp1: np.ndarray) -> None:
        t = self.length
        if t == len(self._rewards):
            self._observations = _doubled(self._observations, 2 * t + 1)
            self._actions = _doubled(self._actions, 2 * t)
            self._rewards = _doubled(self._rewards, 2 * t)
        self._actions[t] = action_t
        self._rewards[t] = reward_t
        self._observations[t + 1] = observation_tp1
        self.length = t + 1

    def finish(self, slot: int, terminated: bool, truncated: bool) -> Episode:
        episode = Episode(
            index=self.index,
            observations=self._observations[: self.length + 1],
            actions=self._actions[: self.length],
            rewards=self._rewards[: self.length],
            terminated=terminated,
            truncated=truncated,
        )
        self._check_finite(slot, episode)
        return episode

    def _check_finite(self, slot: int, episode: Episode) -> None:
        """Checked once an episode, not once a step: a step costs microseconds."""
        for name, values in (("observation", episode.observations), ("reward", episode.rewards)):
            rows = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if rows.all():
                continue
            first = int(np.argmin(rows))
            # observations[t] was returned by step t-1, observations[0] by reset.
            self.length = max(first - 1, 0) if name == "observation" else first
            source = "reset" if name == "observation" and first == 0 else "step"
            raise SimulatorError(
                "invalid",
                f"{name}: {source} returned NaN or infinity: {values[first]!s:.200}",
                slot,
            )


def _doubled(array: np.ndarray, rows: int) -> np.ndarray:
    grown = np.empty((rows, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def _failure(request: CollectRequest, kind: str, message: str) -> CollectFailure:
    return CollectFailure(
        kind=kind, message=message, env_id=request.env_id, iteration=request.iteration
    )
