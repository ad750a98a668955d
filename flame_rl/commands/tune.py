"""`main.py tune --env Acrobot-v1 --algorithm ppo --env-steps 100000`: search settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flame_rl.run.folder import hold_folder, path_to_show
from flame_rl.settings.checks import flag, names_of
from flame_rl.settings.parse import parse, read_first
from flame_rl.system.errors import UsageError, say
from flame_rl.system.machine import available_cores, require
from flame_rl.system.program import typed
from flame_rl.system.signals import stop_on_signals
from flame_rl.tools.side_runs import without
from flame_rl.tools.study import MAY_CHANGE, Search, Study, TuneFlags, flags_of, with_effect

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from flame_rl.tools.trials import Final

DESCRIPTION = """Search the settings with which an algorithm learns best in an environment.

Takes the flags of training, of which --env-steps is needed: how long each trial trains. Flags that
are given are fixed; those with a range are searched (docs/tuning.md). With --resume STUDY a study
goes on, and --trials and --finalists may be given again."""

_SHOWN = 10
_FAR = 100  # the seeds that the command at the end begins with are beyond all others


def tune(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it."""
    resumed = read_first(arguments).get("resume")
    config, given = parse(arguments, command="tune", description=DESCRIPTION, extra=TuneFlags)
    require("optuna", "optuna", "tune")
    if resumed is None:
        own = [*map(flag, names_of(TuneFlags)), "--output", "--resume"]
        options = vars(given) | {"parallel": given.parallel or available_cores()}
        study = Study(**options, words=tuple(without(arguments, own)))
    else:
        flags = flags_of(arguments)
        if more := [name for name in flags if name not in ("--resume", *MAY_CHANGE)]:
            free = " and ".join(MAY_CHANGE)
            raise UsageError(f"{more[0]}: a resumed study has its own; {free} may change")
        changed = {name[2:]: getattr(given, name[2:]) for name in MAY_CHANGE if name in flags}
        study = replace(Study.read(resumed), **changed)
        config = parse(study.words)[0].changed(output=resumed)
    search = Search.of(study, config)
    with stop_on_signals() as stop, hold_folder(config) as folder:
        shown = path_to_show(folder, Path.cwd())
        from flame_rl.tools.trials import TRIALS_NAME, best_of, run_finals, run_trials

        if resumed is None:
            # A command that was refused has left no trials.
            if any(folder.glob("trial-*/")):
                remedy = f"name a new folder, or go on with --resume {shown}"
                raise UsageError(f"--output: {shown} holds another study; {remedy}")
            (folder / TRIALS_NAME).unlink(missing_ok=True)
            study = replace(study, search=study.search or with_effect(search, stop))
        search = Search.of(study, config, shown)
        study.write(folder)
        final = f"\nFinal: the best {study.finalists} of them for {search.final_env_steps:,} env "
        final += f"steps, with seeds {' '.join(map(str, search.final_seeds))}"
        say(
            f"Study {shown}: {study.trials} trials of {config.experiment.env_steps:,} env steps, "
            f"{study.parallel} side by side{final if study.finalists else ''}\n"
            f"Searched: {', '.join(search.ranges).replace('_', ' ')}\n"
        )
        trials = run_trials(search, stop)
        whole = len(trials) >= study.trials and not stop.is_set()
        _conclude(search, trials, run_finals(search, best_of(trials), stop) if whole else [])
    return stop.exit_code


def _conclude(search: Search, trials: Sequence[FrozenTrial], finals: Sequence[Final]) -> None:
    """Print the best trials and how to go on, and draw the study."""
    from flame_rl.report.figures import draw_finals
    from flame_rl.report.runs import grid
    from flame_rl.tools.trials import best_of, draw_study

    best, study, folder = best_of(trials), search.study, search.folder
    names = [name.replace("_", " ") for name in search.ranges]
    left = best and len(finals) < min(study.finalists, len(best))
    if len(trials) < study.trials or left or any(None in each.scores for each in finals):
        words = typed(f"tune --resume {shlex.quote(str(folder))}", "tune")
        say(f"\nSaved after {len(trials)} trials; go on with:\n  {words}")
    if not best:
        return

    def values(trial: FrozenTrial) -> list[str]:
        settings = search.settings_of(trial)
        return [str(settings[name]) for name in search.ranges]

    rows = [(str(each.number), each.value, *values(each)) for each in best[:_SHOWN]]
    of = "evaluations" if search.config.experiment.evaluate_every else "training"
    scored = [each for each in trials if each.value is not None]
    failed, pruned = len(trials) - len(scored), len(scored) - len(best)
    say(
        f"\nBest of {len(trials)} trials, {pruned} of them pruned and {failed} failed; the score "
        f"is the mean return of {of} over the last tenth of the env steps:\n\n"
        f"{grid(('trial', 'score', *names), rows)}\n"
    )
    title = f"{search.config.algorithm.title} on {search.config.experiment.env_name}"
    drawn = draw_study(trials, folder)
    if finals:
        header = ("trial", "mean", *(f"seed {n}" for n in search.final_seeds), *names)
        rows = [(str(e.trial.number), e.mean, *e.scores, *values(e.trial)) for e in finals]
        scores = "the scores are mean returns of the last policy without exploration"
        each = f"Final, each for {search.final_env_steps:,} env steps"
        say(f"{each}; {scores}:\n\n{grid(header, rows)}\n")
    chosen = best[0]
    if ranked := [each for each in finals if each.mean is not None]:
        named = [(f"trial {each.trial.number}", each.scores) for each in ranked]
        drawn.append(draw_finals(folder / "final.png", named, title))
        chosen = ranked[0].trial
    first = search.config.experiment.seed + max(_FAR, study.final_seeds) + 1
    say(
        f"Pictures: {', '.join(map(str, drawn))}\n"
        f"Train with the settings of trial {chosen.number} and other seeds:\n"
        f"  {typed(shlex.join(search.command(chosen, final=bool(ranked))))} "
        f"--seeds {first} {first + 1} {first + 2}"
    )
