"""Action masks: which choices are allowed at an observation, one bit for each. The choices of an
action are those of its factors, one factor after another, as the logits of a policy are; A is their
number. A mask travels, is recorded and is kept as ceil(A / 8) bytes, of which the first choice is
the highest bit of the first."""

import numpy as np

ACTION_MASKS = "action_masks"  # the column of masks, a row for each observation
# The logit of a forbidden choice: its probability is exactly 0, and so, unlike -inf's, any product.
FORBIDDEN_LOGIT = -1e30


def mask_bytes(choices: int) -> int:
    """The bytes of a mask of A choices."""
    return -(-choices // 8)


def pack_masks(allowed: np.ndarray) -> np.ndarray:
    """Bool [..., A] -> uint8 [..., ceil(A / 8)]."""
    return np.packbits(allowed, axis=-1)


def allowed_in(columns: dict[str, np.ndarray], choices: int, prefix: str = "") -> np.ndarray | None:
    """Which of A choices each row allows, bool [..., A]; None without masks. `prefix` is "next_"
    for those of the observations that follow."""
    masks = columns.get(prefix + ACTION_MASKS)
    return None if masks is None else np.unpackbits(masks, axis=-1, count=choices).view(bool)


def masked(
    values: np.ndarray, columns: dict[str, np.ndarray], forbidden: float, prefix: str = ""
) -> np.ndarray:
    """The values of all choices, float [..., A], with `forbidden` for those that are not allowed;
    the same array where there are no masks. For the other arguments see `allowed_in`."""
    allowed = allowed_in(columns, values.shape[-1], prefix)
    return values if allowed is None else np.where(allowed, values, values.dtype.type(forbidden))
