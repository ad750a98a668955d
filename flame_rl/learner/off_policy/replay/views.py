"""Views: positions of steps to training data, as index arithmetic over the rows of a store.

Each returns columns by name, copies with the same first dimension B, the number of positions.
Besides the store's own columns there are "next_observations", where there are masks
"next_action_masks", and "discounts": the factor of the next observation's value, 0 after an end. A
time limit is no end: the value of the episode's last observation counts. In a store with k frames,
observations have a dimension k before D, and "missing" says which precede the episode;
"next_missing" of sequences those of "next_observations". Positions not kept raise ValueError.
"""

from typing import Protocol

import numpy as np

from flame_rl.learner.training.network import Samples
from flame_rl.wire.masks import ACTION_MASKS

# What comes with every observation.
_OBSERVED = {"observations", ACTION_MASKS}


class StoredSteps(Protocol):
    """What a view needs of a store; see `flame_rl.learner.off_policy.replay.store.ReplayStore`."""

    steps: int

    def rows(self, positions: np.ndarray) -> np.ndarray: ...

    def times(self, positions: np.ndarray) -> np.ndarray: ...

    def left(self, positions: np.ndarray) -> np.ndarray: ...

    def read(self, rows: np.ndarray, times: np.ndarray | None = None) -> dict[str, np.ndarray]: ...


def n_step(store: StoredSteps, positions: np.ndarray, n: int, discount: float) -> Samples:
    """Up to n steps as one, at least 1, fewer where the episode ends before (Sutton and Barto 2018,
    eq. 7.1), at positions int64 [B]; `discount` is gamma, from 0 to 1.

    Returns the store's columns, [B, ...], but that with k the number of steps taken together
    "rewards" are r_t + gamma r_{t+1} + ... + gamma^(k-1) r_{t+k-1}; "next_observations", [B, D],
    those of step t+k; "discounts", float32 [B]: gamma^k, or 0 where the episode terminated within
    the k steps; "between", [B, n-1, D], the observations of steps t+1 to t+n-1; and their
    "between_discounts", float32 [B, n-1]: gamma to gamma^(n-1), or 0 from step t+k on.
    """
    rows, count = store.rows(positions), np.minimum(store.left(positions), n)
    # An episode that ends before is followed by its last row, whose reward is 0.
    steps = np.minimum(np.arange(n + 1), count[:, None])
    read = store.read(rows[:, None] + steps, store.times(positions)[:, None] + steps)
    each = np.arange(len(rows))
    if not read["continues"][:, : n - 1].all():
        # With another goal an episode may end before its last step.
        going_on = np.cumprod(read["continues"][:, : n - 1], axis=1).sum(axis=1)
        count = np.minimum(count, 1 + going_on.astype(np.int64))
        read["rewards"][:, :n] *= np.arange(n) < count[:, None]
        for name in _OBSERVED & read.keys():
            read[name][:, n] = read[name][each, count]
    powers = np.power(float(discount), np.arange(n + 1))
    columns = {name: column[:, 0] for name, column in read.items()}
    columns["rewards"] = (read["rewards"][:, :n] @ powers[:n]).astype(np.float32)
    for name in _OBSERVED & read.keys():
        columns[f"next_{name}"] = read[name][:, n]
    continues = read["continues"][each, count - 1]
    columns["discounts"] = (continues * powers[count]).astype(np.float32)
    del columns["continues"]
    columns["between"] = read["observations"][:, 1:n]
    inside = np.arange(1, n) < count[:, None]
    columns["between_discounts"] = (inside * powers[1:n]).astype(np.float32)
    return columns


def sequences(
    store: StoredSteps, positions: np.ndarray, length: int, overlap: int, discount: float
) -> Samples:
    """The sequence of steps in which each position lies.

    The sequences of an episode begin at its steps 0, length - overlap, 2 (length - overlap), ...;
    none begins where the sequence before already has all steps that follow. Where several
    sequences have the position's step, the earliest one is returned: of a sequence's steps, all
    but those that it shares with the one before lead to it. A sequence ends with its episode: from
    there on "mask" is 0, observations repeat the last one, and all else is 0.

    `length` is L, the steps of a sequence, `overlap` how many it shares with the one before, less
    than L; for the others see `n_step`. Returns the store's columns, [B, L, ...];
    "next_observations", [B, L, D]; "discounts" and "mask", float32 [B, L]; "starts", int64 [B]: the
    positions of the first steps.
    """
    stride = length - overlap
    time = store.times(positions).astype(np.int64)
    starts = positions - time + np.maximum(time - overlap, 0) // stride * stride
    left = store.left(starts)[:, None]
    steps = np.arange(length + 1)
    inside = np.minimum(steps, left)
    times = store.times(starts)[:, None] + inside
    read = store.read(store.rows(starts)[:, None] + inside, times)
    sequence = {name: column[:, :-1] for name, column in read.items()}
    for name in (_OBSERVED | {"missing"}) & read.keys():
        sequence[f"next_{name}"] = read[name][:, 1:]
    sequence["discounts"] = sequence.pop("continues") * np.float32(discount)
    sequence["mask"] = (steps[:-1] < left).astype(np.float32)
    sequence["starts"] = starts
    return sequence


def equal_shares(learned: np.ndarray) -> np.ndarray:
    """Factors of the steps of drawn sequences, float32 [B, L], that make the mean over all of them
    the mean over the sequences of the mean over the steps of each that are `learned` from, 1 or 0.

    A sequence is drawn as often as it has such steps: so each stored step counts alike.
    """
    return learned * (np.float32(learned.shape[1]) / learned.sum(axis=1, keepdims=True))
