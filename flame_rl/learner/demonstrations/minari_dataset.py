"""Datasets of Minari that are on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flame_rl.actor.environments.masks import ACTION_MASK, OBSERVATION
from flame_rl.learner.demonstrations.conversion import flattened
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import require
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import EnvironmentSpec

_OF_STEPS = ("actions", "rewards", "terminations", "truncations")


def read_minari(name: str, spec: EnvironmentSpec) -> dict[str, np.ndarray]:
    """The episodes of a dataset as arrays; see conversion.py. Nothing is downloaded.

    Raises:
        UsageError: minari is not installed, there is no such dataset here, or it has another form.
    """
    try:
        minari = require("minari", "minari", "demonstrations")
    except UsageError as error:
        raise UsageError(f"no file and no run folder; of a Minari dataset, {error}") from error
    try:
        dataset = minari.load_dataset(name, download=False)
        arrays = [_arrays_of(episode, spec) for episode in dataset.iterate_episodes()]
        return {n: np.concatenate([each[n] for each in arrays]) for n in arrays[0]}
    except UsageError:
        raise
    except Exception as error:  # of names, of JSON, of HDF5, of a dataset without episodes, …
        reason = " ".join(str(error).split())
        raise UsageError(
            "no file, no run folder and no Minari dataset on this machine that can be read: "
            f"{reason:.200}; give another name, or fetch it by `minari download {name}`"
        ) from error


def _arrays_of(episode: Any, spec: EnvironmentSpec) -> dict[str, np.ndarray]:
    arrays = {field: np.asarray(getattr(episode, field)) for field in _OF_STEPS}
    observations, masks = episode.observations, None
    if spec.action_mask == "observation":
        observations, masks = observations[OBSERVATION], observations[ACTION_MASK]
    elif spec.masked:
        masks = (episode.infos or {}).get(ACTION_MASK)
    if masks is not None:
        arrays[ACTION_MASKS] = np.asarray(masks).reshape(len(masks), -1)
    rows = _rows_of(observations, len(arrays["rewards"]) + 1)
    return arrays | flattened(spec.observation_space, rows)


def _rows_of(observations: Any, rows: int) -> Iterator[Any]:
    """Each observation, given the arrays of all: of a Dict or a Tuple one for each part."""
    if isinstance(observations, Mapping):
        parts = {key: _rows_of(part, rows) for key, part in observations.items()}
        yield from (dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True))
    elif isinstance(observations, tuple):
        yield from zip(*(_rows_of(part, rows) for part in observations), strict=True)
    else:
        if len(observations) != rows:
            raise UsageError(f"observations: {len(observations)} in an episode of {rows - 1} steps")
        yield from observations
