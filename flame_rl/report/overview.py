"""The runs in a folder, a row each: how far they are, and how good."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flame_rl.report.tables import TIMING_NAME, read_columns
from flame_rl.run.folder import EVALUATIONS_NAME, METRICS_NAME, is_held, read_config
from flame_rl.run.results import Totals, ended
from flame_rl.settings.environments import environment_id
from flame_rl.system.errors import UsageError

_SECONDS = ("collecting_seconds", "updating_seconds", "evaluating_seconds")


@dataclass(frozen=True)
class RunRow:
    """A run, as its folder tells.

    Attributes:
        run: the folder.
        env: the environment's Gymnasium id.
        algorithm, seed: of its configuration.
        env_steps: collected so far.
        score: what `last` and `best` are: mean returns of evaluations, or of training's iterations.
        last, best: None before the first.
        seconds: of collecting, updating and evaluating.
        state: whether a process is writing it, and whether it has come to its end.
    """

    run: Path
    env: str
    algorithm: str
    seed: int
    env_steps: int
    score: Literal["evaluation", "training"]
    last: float | None
    best: float | None
    seconds: float
    state: Literal["running", "done", "interrupted"]


def read_row(folder: Path) -> RunRow:
    """The row of a run folder. Raises UsageError if it is damaged."""
    try:
        config = read_config(folder)
        metrics, timing, evaluations = (
            read_columns(path) if (path := folder / name).exists() else {}
            for name in (METRICS_NAME, TIMING_NAME, EVALUATIONS_NAME)
        )
        experiment = config.experiment
        returns, evaluated = metrics.get("reward_mean", []), evaluations.get("reward_mean", [])
        scores = evaluated or returns
        done = len(returns)
        steps = int(metrics["env_steps"][-1]) if done else 0
        # Without a row of its own, no evaluation was due.
        due = experiment.evaluate_every is None or evaluations.get("iteration", [])[-1:] == [
            done - 1
        ]
        totals = Totals(done, 0, steps, mean_return=scores[-1] if scores and due else None)
        seconds = float(sum(sum(timing.get(name, [])) for name in _SECONDS))
    except OSError as error:
        raise UsageError(f"{folder} holds no run: {error}") from error
    except (UsageError, LookupError, ValueError, TypeError) as error:
        raise UsageError(f"{folder} holds no run that can be read: {error}") from error
    state = "done" if ended(experiment, totals) else "interrupted"
    return RunRow(
        run=folder,
        env=environment_id(experiment.env_name),
        algorithm=config.algorithm_name,
        seed=experiment.seed,
        env_steps=steps,
        score="evaluation" if evaluated else "training",
        last=scores[-1] if scores else None,
        best=max(scores, default=None),
        seconds=seconds,
        state="running" if is_held(folder) else state,
    )
