"""`main.py tune --env Acrobot-v1 --algorithm ppo --env-steps 100000`: search settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flame_rl.run.folder import hold_folder, path_to_show
from flame_rl.settings.checks import Count, CountOrZero, check_fields, flag
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.parse import parse, resumed_folder
from flame_rl.settings.ranges import ranges_of
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import available_cores, require
from flame_rl.system.output import say
from flame_rl.system.signals import stop_on_signals
from flame_rl.tools.seeds import without
from flame_rl.tools.study import (
    Final,
    Pruner,
    Search,
    Study,
    read_study,
    run_finals,
    write_study,
)

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

DESCRIPTION = """Search the settings with which an algorithm learns best in an environment.

Takes the flags of training, of which --env-steps is needed: how long each trial trains. Flags that
are given are fixed; those with a range are searched (docs/tuning.md). The settings of the best
trials then train for longer, with several seeds. With --resume STUDY a study goes on, and --trials
and --finalists may be given again."""

_MAY_CHANGE = ("--trials", "--finalists")
_SHOWN = 10
# From the study's seed to those of the command at the end, which neither trials nor finals had.
_FAR = 100


@dataclass(frozen=True)
class TuneFlags:
    """The flags of `tune` besides those of training."""

    trials: Count = 50
    """Number of trials. A resumed study may be given more."""

    parallel: Count | None = None
    """Trials side by side; none: one for each core. It changes which trials a trial learns from."""

    pruner: Pruner = "median"
    """Which trials end early. median: worse than half of the finished ones at the same number of
    env steps; halving: in the worse half after an eighth, a quarter and a half of them."""

    search: tuple[str, ...] = ()
    """Names of flags to search, such as learning-rate; none: all that have a range and are not
    given. What is given, too, is the first trial's."""

    finalists: CountOrZero = 4
    """Number of trials whose settings are trained again in the end, to choose among them by the
    mean over seeds. 0: the best trial is chosen."""

    final_seeds: Count = 3
    """Seeds with which each of the finalists is trained."""

    final_env_steps: Count | None = None
    """Env steps of each of these runs; none: four times --env-steps."""

    def __post_init__(self) -> None:
        check_fields(self)


def tune(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it.

    Raises:
        UsageError: a flag is wrong, or the folder holds no study.
        RunError: the first trials fail.
    """
    resumed = resumed_folder(arguments)
    config, given = parse(arguments, prog="main.py tune", description=DESCRIPTION, extra=TuneFlags)
    require("optuna", "optuna", "tune")
    if resumed is None:
        own = [flag(field.name) for field in fields(TuneFlags)] + ["--output", "--resume"]
        options = vars(given) | {"parallel": given.parallel or available_cores()}
        study = Study(tuple(without(arguments, own)), **options)
    else:
        flags = _flags(arguments)
        if more := [name for name in flags if name not in ("--resume", *_MAY_CHANGE)]:
            raise UsageError(
                f"{more[0]}: a resumed study has its own; only {' and '.join(_MAY_CHANGE)} may "
                "change"
            )
        changed = {name[2:]: getattr(given, name[2:]) for name in _MAY_CHANGE if name in flags}
        study = replace(read_study(resumed), **changed)
        config = parse(study.words)[0].changed(output=resumed)
    search = search_of(study, config)
    with stop_on_signals() as stop, hold_folder(config) as folder:
        search = replace(search, folder=path_to_show(folder, Path.cwd()))
        # Here and not above, so that --help and mistakes are answered at once.
        from flame_rl.tools.trials import TRIALS_NAME, best_of, run_trials

        if resumed is None:
            # A command that was refused has left no trials.
            if any(folder.glob("trial-*/")):
                raise UsageError(
                    f"--output: {search.folder} holds another study; name a new folder, or go on "
                    f"with --resume {search.folder}"
                )
            (folder / TRIALS_NAME).unlink(missing_ok=True)
        write_study(folder, study)
        final = (
            f"\nFinal: the best {study.finalists} of them for {search.final_env_steps:,} env "
            f"steps, with seeds {_listed(search.final_seeds)}"
        )
        say(
            f"Study {search.folder}: {study.trials} trials of {search.env_steps:,} env steps, "
            f"{study.parallel} side by side{final if study.finalists else ''}\n"
            f"Searched: {', '.join(_names(search))}\n"
        )
        trials = run_trials(search, stop)
        whole = len(trials) >= study.trials and not stop.is_set()
        _conclude(search, trials, run_finals(search, best_of(trials), stop) if whole else [])
    return stop.exit_code


def search_of(study: Study, config: TrainConfig) -> Search:
    """What follows from a study and the configuration of its words. Raises UsageError."""
    if config.experiment.env_steps is None:
        raise UsageError("--env-steps: the env steps of each trial, such as 100000")
    if config.output.seeds:
        raise UsageError("--seeds: all trials have the one --seed; train the best with others")
    ranges = ranges_of(config, _flags(study.words), study.search)
    words = without(study.words, list(map(flag, ranges)))
    plain, _ = parse(words)
    return Search(Path(), study, config, ranges, tuple(words), plain)


def _flags(words: Sequence[str]) -> list[str]:
    """The names of the flags on a command line, with hyphens."""
    return [w.partition("=")[0].replace("_", "-") for w in words if w.startswith("--")]


def _listed(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _names(search: Search) -> list[str]:
    return [name.replace("_", " ") for name in search.ranges]


def _conclude(search: Search, trials: Sequence[FrozenTrial], finals: Sequence[Final]) -> None:
    """Print the best trials and how to go on, and draw the study."""
    from flame_rl.report.figures import draw_best_so_far, draw_finals, draw_importances
    from flame_rl.report.runs import grid
    from flame_rl.tools.trials import best_of, importances

    best = best_of(trials)
    left = best and len(finals) < min(search.study.finalists, len(best))
    if len(trials) < search.study.trials or left or any(None in each.scores for each in finals):
        say(
            f"\nSaved after {len(trials)} trials; go on with:\n"
            f"  uv run --group tune main.py tune --resume {shlex.quote(str(search.folder))}"
        )
    if not best:
        return

    def values(trial: FrozenTrial) -> list[str]:
        settings = search.settings_of(trial)
        return [str(settings[name]) for name in search.ranges]

    rows = [(str(each.number), each.value, *values(each)) for each in best[:_SHOWN]]
    of = "evaluations" if search.config.experiment.evaluate_every else "training"
    failed = sum(each.value is None for each in trials)
    pruned = len(trials) - failed - len(best)
    say(
        f"\nBest of {len(trials)} trials, {pruned} of them pruned and {failed} failed; the score "
        f"is the mean return of {of} over the last tenth of the env steps:\n\n"
        f"{grid(('trial', 'score', *_names(search)), rows)}\n"
    )
    scores = [(each.value, each in best) for each in trials if each.value is not None]
    title = f"{search.config.algorithm.title} on {search.config.experiment.env_name}"
    drawn = [draw_best_so_far(search.folder / "best.png", scores, title)]
    if shares := importances(trials):
        drawn.append(draw_importances(search.folder / "importance.png", shares, title))
    chosen, command = best[0], search.command(best[0])
    if finals:
        seeds = [f"seed {seed}" for seed in search.final_seeds]
        rows = [
            (str(each.trial.number), each.mean, *each.scores, *values(each.trial))
            for each in finals
        ]
        say(
            f"Final, each for {search.final_env_steps:,} env steps; the scores are mean returns of "
            "the last policy without exploration:\n\n"
            f"{grid(('trial', 'mean', *seeds, *_names(search)), rows)}\n"
        )
    if ranked := [each for each in finals if each.mean is not None]:
        chosen = ranked[0].trial
        command = search.command(chosen, final=True)
        named = [(f"trial {each.trial.number}", each.scores) for each in ranked]
        drawn.append(draw_finals(search.folder / "final.png", named, title))
    first = search.config.experiment.seed + max(_FAR, search.study.final_seeds) + 1
    say(
        f"Pictures: {', '.join(map(str, drawn))}\n"
        f"Train with the settings of trial {chosen.number} and other seeds:\n"
        f"  uv run main.py {shlex.join(command)} --seeds {_listed(range(first, first + 3))}"
    )
