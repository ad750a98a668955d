"""The random numbers of an episode, and NumPy's seeding of many generators at once, to the bit.

`numpy.random.SeedSequence` takes about ten microseconds of Python and C per seed, which is what an
episode of CartPole takes for ten steps. The algorithm is M. E. O'Neill's "randutils" as NumPy
documents it; its results are part of NumPy's promise of compatibility.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from flame_rl.messages import Stream

_POOL = 4
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT = np.uint32(16)
_WORD = 0xFFFFFFFF
# One by one is sooner for fewer.
_FEW = 8


# The two seeds of a training episode have the keys (iteration, index, 0) and (iteration, index, 1),
# which those of the other streams never meet.
_STREAM_KEYS: dict[Stream, tuple[int, ...]] = {
    "training": (),
    "validation": (2,),
    "evaluation": (3,),
}


def episode_randomness(
    run_seed: int, iteration: int, index: int, stream: Stream = "training"
) -> tuple[int, np.random.Generator]:
    """The environment's reset seed and the generator of the actions' noise of one episode."""
    key = (iteration, index, *_STREAM_KEYS[stream])
    sequence = np.random.SeedSequence(run_seed, spawn_key=key)
    reset_sequence, noise_sequence = sequence.spawn(2)
    # Gymnasium takes non-negative seeds; 31 bits suit environments that keep them in an int32.
    reset_seed = int(reset_sequence.generate_state(1, np.uint32)[0] >> 1)
    return reset_seed, np.random.default_rng(noise_sequence)


def _powers(first: int, factor: int, count: int) -> np.ndarray:
    """first, first * factor, … modulo 2**32, uint32 [count]."""
    values = [first]
    for _ in range(count - 1):
        values.append(values[-1] * factor & _WORD)
    return np.array(values, np.uint32)


# Four words of the pool's own, twelve crossings, and room for six more words of entropy.
_HASHES = _powers(_INIT_A, _MULT_A, _POOL + _POOL * (_POOL - 1) + 6 * _POOL + 1)
_OUTPUTS = _powers(_INIT_B, _MULT_B, 17)


def _hash(values: np.ndarray, constants: np.ndarray, first: int, count: int) -> np.ndarray:
    """Hash `values` [..., n] with `count` constants after another: [..., count, n]."""
    before, after = constants[first : first + count], constants[first + 1 : first + count + 1]
    hashed = (values ^ before[:, None]) * after[:, None]
    return hashed ^ (hashed >> _SHIFT)


def _mix(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    mixed = left * _MIX_LEFT - right * _MIX_RIGHT
    return mixed ^ (mixed >> _SHIFT)


def words_of(value: int) -> list[int]:
    """Little-endian 32-bit words; of 0, one."""
    words = [value & _WORD]
    while value := value >> 32:
        words.append(value & _WORD)
    return words


def mixed_pools(entropy: list[np.ndarray | int]) -> np.ndarray:
    """The pools of as many seed sequences as the arrays in `entropy` are long.

    Args:
        entropy: the words, each one for all sequences or uint32 [n]; at most ten.

    Returns:
        uint32 [4, n].
    """
    size = max((len(word) for word in entropy if isinstance(word, np.ndarray)), default=1)
    rows = [np.broadcast_to(np.asarray(word, np.uint32), size) for word in entropy]
    rows += [np.zeros(size, np.uint32)] * (_POOL - len(rows))
    before, after = _HASHES[:_POOL, None], _HASHES[1 : _POOL + 1, None]
    pool = (np.stack(rows[:_POOL]) ^ before) * after
    pool ^= pool >> _SHIFT
    used = _POOL
    for source in range(_POOL):
        others = [i for i in range(_POOL) if i != source]
        pool[others] = _mix(pool[others], _hash(pool[source], _HASHES, used, _POOL - 1))
        used += _POOL - 1
    for row in rows[_POOL:]:
        pool = _mix(pool, _hash(row, _HASHES, used, _POOL))
        used += _POOL
    return pool


def generated(pools: np.ndarray, count: int) -> np.ndarray:
    """`SeedSequence.generate_state(count)` of each pool: uint32 [n, count]."""
    words = pools[np.arange(count) % _POOL]
    words = (words ^ _OUTPUTS[:count, None]) * _OUTPUTS[1 : count + 1, None]
    return np.ascontiguousarray((words ^ (words >> _SHIFT)).T)


class _Ready(ISeedSequence):
    """Hands out words that are known already."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        return self._words


def episodes_randomness(
    run_seed: int, iteration: int, indices: Sequence[int], stream: Stream = "training"
) -> tuple[list[int], list[np.random.Generator]]:
    """`episode_randomness` of many episodes: their reset seeds, and their noise's generators."""
    if len(indices) < _FEW or max(indices) > _WORD:
        each = [episode_randomness(run_seed, iteration, index, stream) for index in indices]
        return [seed for seed, _ in each], [generator for _, generator in each]
    run = words_of(run_seed)
    known = [*run, *[0] * (_POOL - len(run)), *words_of(iteration)]
    index = np.array(indices, np.uint32)
    key = _STREAM_KEYS[stream]
    seeds = generated(mixed_pools([*known, index, *key, 0]), 1)[:, 0] >> np.uint32(1)
    noise = generated(mixed_pools([*known, index, *key, 1]), 8)
    return seeds.tolist(), [generator_of(words) for words in noise]


def reset_generators(seeds: Sequence[int]) -> list[np.random.Generator]:
    """What an environment of Gymnasium has as `np_random` after a reset with each of `seeds`.

    Args:
        seeds: from 0 to 2**32 - 1.
    """
    return [generator_of(words) for words in generated(mixed_pools([np.array(seeds, "u4")]), 8)]


def generator_of(words: np.ndarray) -> np.random.Generator:
    """The generator that a seed sequence with these first eight uint32 words would seed."""
    return np.random.Generator(np.random.PCG64(_Ready(words.view(np.uint64))))
