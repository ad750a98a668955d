"""The episodes that a run keeps in its replay journal, as demonstrations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments.actions import has_bounds
from flame_rl.learner.demonstrations.conversion import REWARD_PARTS
from flame_rl.learner.off_policy.replay.journal import Journal, JournalError
from flame_rl.learner.off_policy.replay.records import refuse_wrong_numbers
from flame_rl.system.errors import UsageError
from flame_rl.system.files import why_refused
from flame_rl.wire.fields import WireError
from flame_rl.wire.messages import EnvironmentSpec, Episodes, concatenate
from flame_rl.wire.steps import step_columns

# The folder of the journal in that of the run.
_JOURNAL = "replay"


def episodes_of_run(folder: Path, spec: EnvironmentSpec) -> Episodes:
    """All episodes that the journal in a run folder has, with the rewards that its run learned
    from.

    Raises:
        UsageError: there is no journal, or it is damaged or of another environment.
    """
    if not (folder / _JOURNAL).is_dir():
        raise UsageError(
            f"no run with a replay memory, which {_JOURNAL}/ would hold; the policy of any run "
            "plays demonstrations by main.py evaluate RUN --record FILE.npz"
        )
    try:
        found = [_checked(each.episodes, spec) for each in Journal(folder / _JOURNAL).every()]
    except OSError as error:
        raise UsageError(f"{_JOURNAL}: cannot be read: {why_refused(error)}") from error
    except (JournalError, WireError) as error:
        raise UsageError(f"{_JOURNAL}: {error}; take another run") from error
    if not found:
        raise UsageError(f"{_JOURNAL}: no episode that is whole; take another run")
    return concatenate(found)


def _checked(episodes: Episodes, spec: EnvironmentSpec) -> Episodes:
    """The columns that learners need. Raises WireError if one is not of this environment."""
    columns = step_columns(replace(spec, reward_shape=()))
    if not len(episodes) or episodes.lengths.min() < 1:
        raise WireError("lengths: an episode without steps")
    kept = {}
    for column in columns:
        wanted = (episodes.steps + len(episodes) * column.per_observation, *column.shape)
        array = episodes.columns.get(column.name)
        if array is None or (array.dtype, array.shape) != (column.dtype, wanted):
            raise WireError(f"{column.name}: missing or of another shape than {spec.env_id} has")
        kept[column.name] = array
    refuse_wrong_numbers(columns, episodes)
    if isinstance(spec.action_space, spaces.Box):
        # Recorded before they were clipped to their bounds, as the environment took them.
        bounded = has_bounds(spec.action_space)
        kept["actions"] = np.where(bounded, kept["actions"].clip(-1, 1), kept["actions"])
    if REWARD_PARTS in episodes.columns:
        kept[REWARD_PARTS] = episodes.columns[REWARD_PARTS]
    return replace(episodes, columns=kept)
