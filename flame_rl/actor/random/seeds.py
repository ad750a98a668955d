"""Which random numbers belong to which episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flame_rl.actor.random.generators import POOL, WORD, generated, mixed_pools, words_of
from flame_rl.wire.messages import Stream

# For fewer episodes, one SeedSequence at a time is faster.
_FEW = 8

# The two seeds of a training episode have the keys (iteration, index, 0) and (iteration, index, 1),
# which no other stream uses.
_STREAM_KEYS: dict[Stream, tuple[int, ...]] = {
    "training": (),
    "validation": (2,),
    "evaluation": (3,),
}


def episode_randomness(
    run_seed: int, iteration: int, index: int, stream: Stream = "training"
) -> tuple[int, np.random.Generator]:
    """One episode's reset seed for the environment and generator for the noise of actions."""
    reset, noise = _sequences(run_seed, iteration, index, stream)
    return _reset_seed(reset), np.random.default_rng(noise)


def _sequences(
    run_seed: int, iteration: int, index: int, stream: Stream
) -> list[np.random.SeedSequence]:
    key = (iteration, index, *_STREAM_KEYS[stream])
    return np.random.SeedSequence(run_seed, spawn_key=key).spawn(2)


def _reset_seed(sequence: np.random.SeedSequence) -> int:
    # Gymnasium takes non-negative seeds; 31 bits suit environments that keep them in an int32.
    return int(sequence.generate_state(1)[0] >> 1)


def episodes_randomness(
    run_seed: int, iteration: int, indices: Sequence[int], stream: Stream = "training"
) -> tuple[np.ndarray, np.ndarray]:
    """`episode_randomness` of many episodes.

    Returns:
        Their reset seeds, int64 [n], and the words from which `generator_of` makes the generators
        of their noise, uint32 [n, 8].
    """
    if len(indices) < _FEW or max(indices) > WORD:
        pairs = [_sequences(run_seed, iteration, index, stream) for index in indices]
        seeds = np.array([_reset_seed(reset) for reset, _ in pairs], np.int64)
        return seeds, np.stack([noise.generate_state(8) for _, noise in pairs])
    run = words_of(run_seed)
    known = [*run, *[0] * (POOL - len(run)), *words_of(iteration)]
    index = np.array(indices, np.uint32)
    key = _STREAM_KEYS[stream]
    seeds = generated(mixed_pools([*known, index, *key, 0]), 1)[:, 0] >> np.uint32(1)
    return seeds.astype(np.int64), generated(mixed_pools([*known, index, *key, 1]), 8)
