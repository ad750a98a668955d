"""NumPy's seeding and drawing of many generators at once, to the bit.

`numpy.random.SeedSequence` takes about ten microseconds of Python and C per seed, which is what an
episode of CartPole takes for ten steps. The algorithm is M. E. O'Neill's "randutils" as NumPy
documents it; its results are part of NumPy's promise of compatibility.
"""

from __future__ import annotations

import numpy as np
from numpy.random.bit_generator import ISeedSequence

POOL = 4
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT = np.uint32(16)
WORD = 0xFFFFFFFF

# 128-bit numbers as two arrays: the upper and the lower 64 bits.
_Wide = tuple[np.ndarray, np.ndarray]

_FACTOR = 0x2360ED051FC65DA44385DF649FCCF645
_WIDE_WORD = (1 << 128) - 1
_ONE, _HALF, _LOW_HALF = np.uint64(1), np.uint64(32), np.uint64(WORD)
# How many generators are advanced together: their states fit the processor's cache.
_TOGETHER = 1024


def _powers(first: int, factor: int, count: int) -> np.ndarray:
    """first, first * factor, … modulo 2**32, uint32 [count]."""
    values = [first]
    for _ in range(count - 1):
        values.append(values[-1] * factor & WORD)
    return np.array(values, np.uint32)


# Hash constants for the pool's four words, twelve cross mixes and up to six more entropy words.
_HASHES = _powers(_INIT_A, _MULT_A, POOL + POOL * (POOL - 1) + 6 * POOL + 1)
_OUTPUTS = _powers(_INIT_B, _MULT_B, 17)


def _hash(values: np.ndarray, constants: np.ndarray, first: int, count: int) -> np.ndarray:
    """Hash `values` [..., n] with each of `count` successive constants: [..., count, n]."""
    before, after = constants[first : first + count], constants[first + 1 : first + count + 1]
    hashed = (values ^ before[:, None]) * after[:, None]
    return hashed ^ (hashed >> _SHIFT)


def _mix(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    mixed = left * _MIX_LEFT - right * _MIX_RIGHT
    return mixed ^ (mixed >> _SHIFT)


def words_of(value: int) -> list[int]:
    """The 32-bit words of an integer, lowest first; 0 has one word."""
    words = [value & WORD]
    while value := value >> 32:
        words.append(value & WORD)
    return words


def mixed_pools(entropy: list[np.ndarray | int]) -> np.ndarray:
    """The entropy pools of n seed sequences.

    Args:
        entropy: at most ten words, each an int that all sequences share, or uint32 [n].

    Returns:
        uint32 [4, n].
    """
    size = max((len(word) for word in entropy if isinstance(word, np.ndarray)), default=1)
    rows = [np.broadcast_to(np.asarray(word, np.uint32), size) for word in entropy]
    rows += [np.zeros(size, np.uint32)] * (POOL - len(rows))
    before, after = _HASHES[:POOL, None], _HASHES[1 : POOL + 1, None]
    pool = (np.stack(rows[:POOL]) ^ before) * after
    pool ^= pool >> _SHIFT
    used = POOL
    for source in range(POOL):
        others = [i for i in range(POOL) if i != source]
        pool[others] = _mix(pool[others], _hash(pool[source], _HASHES, used, POOL - 1))
        used += POOL - 1
    for row in rows[POOL:]:
        pool = _mix(pool, _hash(row, _HASHES, used, POOL))
        used += POOL
    return pool


def generated(pools: np.ndarray, count: int) -> np.ndarray:
    """`SeedSequence.generate_state(count)` of each pool: uint32 [n, count]."""
    words = pools[np.arange(count) % POOL]
    words = (words ^ _OUTPUTS[:count, None]) * _OUTPUTS[1 : count + 1, None]
    return np.ascontiguousarray((words ^ (words >> _SHIFT)).T)


class _Ready(ISeedSequence):
    """A seed sequence whose words have been computed already."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        return self._words


def reset_words(seeds: np.ndarray) -> np.ndarray:
    """The words from which `generator_of` makes an environment's `np_random` as after a reset.

    Args:
        seeds: the seeds of the resets, int [n], from 0 to 2**32 - 1.

    Returns:
        uint32 [n, 8].
    """
    return generated(mixed_pools([np.asarray(seeds).astype(np.uint32)]), 8)


def generator_of(words: np.ndarray) -> np.random.Generator:
    """The generator that a seed sequence with these first eight uint32 words would seed."""
    return np.random.Generator(np.random.PCG64(_Ready(words.view(np.uint64))))


def uniforms(words: np.ndarray, count: int) -> np.ndarray:
    """`generator_of(w).random(count)` for all w of `words` at once.

    The generator is PCG64 (O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient
    Statistically Good Algorithms for Random Number Generation", XSL-RR 128/64): each
    state gives a number, and the next state is factor * state + increment, modulo 2**128.

    Args:
        words: uint32 [n, 8].
        count: how many numbers each generator draws.

    Returns:
        float64 [count, n], from 0 to below 1.
    """
    blocks = range(0, len(words), _TOGETHER)
    return np.concatenate([_uniforms(words[i : i + _TOGETHER], count) for i in blocks], axis=1)


def _uniforms(words: np.ndarray, count: int) -> np.ndarray:
    first_high, first_low, high, low = np.ascontiguousarray(words.view(np.uint64).T)
    increment = (high << _ONE) | (low >> np.uint64(63)), (low << _ONE) | _ONE
    factor = _FACTOR
    # Seeding advances a state of 0 once, which gives the increment, and adds the seed.
    state = _advanced(_sum(increment, (first_high, first_low)), factor, increment)
    states = _advanced(state, factor, increment)
    states = states[0][None], states[1][None]
    while len(states[0]) < count:
        # Double the states: advance each by as many steps as there are states.
        further = _advanced(states, factor, increment)
        states = tuple(np.concatenate(halves) for halves in zip(states, further, strict=True))
        increment = _advanced(increment, factor, increment)
        factor = factor**2 & _WIDE_WORD
    high, low = states[0][:count], states[1][:count]
    mixed, turn = high ^ low, high >> np.uint64(58)
    turned = (mixed >> turn) | (mixed << (-turn & np.uint64(63)))
    return (turned >> np.uint64(11)) * 2.0**-53


def _sum(left: _Wide, right: _Wide) -> _Wide:
    low = left[1] + right[1]
    return left[0] + right[0] + (low < right[1]), low


def _advanced(state: _Wide, factor: int, increment: _Wide) -> _Wide:
    """state * factor + increment, modulo 2**128."""
    high, low = state
    factor_high, factor_low = np.uint64(factor >> 64), np.uint64(factor & _WIDE_WORD >> 64)
    # The upper 64 bits of low * factor_low, from products of 32-bit halves.
    left, right = low >> _HALF, low & _LOW_HALF
    factor_left, factor_right = factor_low >> _HALF, factor_low & _LOW_HALF
    crossed = right * factor_left
    middle = ((right * factor_right) >> _HALF) + (crossed & _LOW_HALF) + left * factor_right
    beyond = left * factor_left + (crossed >> _HALF) + (middle >> _HALF)
    return _sum((beyond + high * factor_low + low * factor_high, low * factor_low), increment)
