"""The final of a study: the settings of its best trials train for longer, with several seeds.

Settings that learn quickest in a short trial need not end best, and the best score of many trials
with one seed is partly luck (Eimer et al. 2023, "Hyperparameters in Reinforcement Learning and How
To Tune Them"). The score of a final is therefore the mean over seeds that no trial had, and of
each, the mean return of many episodes of the last policy, without exploration.

A run of the final depends on its words alone, and its folder says whether it is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flame_rl.system.signals import StopSignal
from flame_rl.tools.seeds import SideRun, row_of, supervise, without
from flame_rl.tools.study.trials import Trial
from flame_rl.tools.study.tuning import Search, words_of_run

_LONGER = 4
_EPISODES = 100
# Flags of trials that the final has others of, or none: its runs are all as long.
_OF_TRIALS = "--env-steps", "--seed", "--stop-at"
# Beyond any run: of the last policy alone.
_ONLY_AT_THE_END = 1_000_000


@dataclass(frozen=True)
class Final:
    """How good the settings of a trial are in the final.

    Attributes:
        trial: the trial.
        scores: of each seed; None where the run is not at its end.
    """

    trial: Trial
    scores: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a run is not at its end."""
        return None if None in self.scores else statistics.fmean(self.scores)


def best_of(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that were trained to their end, the best first; of equal scores the first."""
    done = [trial for trial in trials if trial.state == "done"]
    return sorted(done, key=lambda trial: trial.score, reverse=True)


def final_seeds(search: Search) -> list[int]:
    """Those after the seed of the trials."""
    first = search.config.experiment.seed + 1
    return list(range(first, first + search.study.final_seeds))


def final_env_steps(search: Search) -> int:
    """Of each run of the final."""
    return search.study.final_env_steps or _LONGER * search.env_steps


def final_command(search: Search, trial: Trial) -> list[str]:
    """The words of a final with the settings of a trial, without its seed."""
    given = {word.partition("=")[0].replace("_", "-") for word in search.words}
    words = without(search.command(trial.settings), _OF_TRIALS)
    words += ["--env-steps", str(final_env_steps(search))]
    if not search.config.experiment.evaluate_every:
        words = without(words, ("--evaluate-every",))
        words += ["--evaluate-every", str(_ONLY_AT_THE_END)]
    if "--evaluate-episodes" not in given:
        words += ["--evaluate-episodes", str(_EPISODES)]
    return words


def run_finals(search: Search, trials: Sequence[Trial], stop: StopSignal) -> list[Final]:
    """Run the final, as far as it is not done.

    Args:
        search: the study.
        trials: all of it.
        stop: set when the user asks to stop; the runs are then saved.

    Returns:
        The finalists, the best first.

    Raises:
        UsageError: a folder holds a run with other settings.
    """
    finalists = best_of(trials)[: search.study.finalists]
    runs = {
        trial.number: [_run(search, trial, seed) for seed in final_seeds(search)]
        for trial in finalists
    }
    left = [run for some in runs.values() for run in some if _score_of(run) is None]
    supervise(left, search.study.parallel, stop)
    finals = [Final(trial, tuple(map(_score_of, runs[trial.number]))) for trial in finalists]
    # A run that failed counts as the worst that there is.
    return sorted(finals, key=lambda each: (each.mean is not None, each.mean), reverse=True)


def _run(search: Search, trial: Trial, seed: int) -> SideRun:
    folder = search.folder / f"final-{trial.number:03}-seed-{seed}"
    words = [*final_command(search, trial), "--seed", str(seed)]
    return SideRun(
        f"trial {trial.number} with seed {seed}",
        folder,
        tuple(words_of_run(search, folder, words)),
    )


def _score_of(run: SideRun) -> float | None:
    row = row_of(run)
    return row.last if row is not None and row.state == "done" else None
