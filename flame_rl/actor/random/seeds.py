"""Which random numbers belong to which episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flame_rl.actor.random.generators import POOL, WORD, generated, mixed_pools, words_of
from flame_rl.wire.messages import Stream

# For fewer episodes, one SeedSequence at a time is faster.
_FEW = 8

# The seeds of a training episode have the keys (iteration, index, 0) and, for the noise of each
# agent, (iteration, index, 1), (iteration, index, 2), …, which no other stream uses: the keys of
# others are longer.
_STREAM_KEYS: dict[Stream, tuple[int, ...]] = {
    "training": (),
    "validation": (2,),
    "evaluation": (3,),
}


def episode_randomness(
    run_seed: int, iteration: int, index: int, stream: Stream = "training"
) -> tuple[int, np.random.Generator]:
    """One episode's reset seed for the environment and generator for the noise of actions."""
    reset, noise = _sequences(run_seed, iteration, index, stream, 1)
    return _reset_seed(reset), np.random.default_rng(noise)


def _sequences(
    run_seed: int, iteration: int, index: int, stream: Stream, agents: int
) -> list[np.random.SeedSequence]:
    """Seed sequences: of the environment's reset, then one for the noise of each agent."""
    key = (iteration, index, *_STREAM_KEYS[stream])
    return np.random.SeedSequence(run_seed, spawn_key=key).spawn(1 + agents)


def _reset_seed(sequence: np.random.SeedSequence) -> int:
    # Gymnasium takes non-negative seeds; 31 bits suit environments that keep them in an int32.
    return int(sequence.generate_state(1)[0] >> 1)


def episodes_randomness(
    run_seed: int,
    iteration: int,
    indices: Sequence[int],
    stream: Stream = "training",
    agents: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """`episode_randomness` of many episodes, each played by `agents` agents.

    Returns:
        Their reset seeds, int64 [n], and the words from which `generator_of` makes the generators
        of their agents' noise, agent by agent, uint32 [n * agents, 8].
    """
    if len(indices) < _FEW or max(indices) > WORD:
        all_of = [_sequences(run_seed, iteration, index, stream, agents) for index in indices]
        seeds = np.array([_reset_seed(reset) for reset, *_ in all_of], np.int64)
        return seeds, np.stack([n.generate_state(8) for _, *noise in all_of for n in noise])
    run = words_of(run_seed)
    known = [*run, *[0] * (POOL - len(run)), *words_of(iteration)]
    index = np.array(indices, np.uint32)
    key = _STREAM_KEYS[stream]
    seeds = generated(mixed_pools([*known, index, *key, 0]), 1)[:, 0] >> np.uint32(1)
    words = [generated(mixed_pools([*known, index, *key, 1 + agent]), 8) for agent in range(agents)]
    return seeds.astype(np.int64), np.stack(words, axis=1).reshape(-1, 8)
