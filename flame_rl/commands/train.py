"""`main.py --env ant`: train, and keep what was learned in a run folder."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flame_rl.commands import COMMANDS
from flame_rl.run import folder as run_folder
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.parse import parse, read_first
from flame_rl.system.errors import Interrupted, RunError, UsageError, say, warn
from flame_rl.system.machine import has_display, require
from flame_rl.system.program import program, typed
from flame_rl.system.signals import StopSignal, stop_on_signals

DESCRIPTION = """Train a policy: a learner here, episodes collected in parallel elsewhere.

Episodes are collected on a Flame cluster where one is configured (FLAME_ENDPOINT, or
~/.flame/flame.yaml), and otherwise on the cores of this machine."""

_LARGE = 200_000_000  # bytes that take a loaded machine seconds to write

if TYPE_CHECKING:
    from flame_rl.report.console import ConsoleReporter
    from flame_rl.run.trainer import Trainer


def train(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it."""
    folder = read_first(arguments).get("resume")
    if folder is not None:
        config = resumed_config(folder, arguments)
    else:
        commands = "\n".join(f"  {name:<9} {what}" for name, what in COMMANDS.items())
        text = f"{DESCRIPTION}\n\nCommands ({program('NAME --help')} says more):\n{commands}"
        config, _ = parse(arguments, description=text, networks=networks_of)
    with stop_on_signals() as stop:
        if config.output.seeds:
            from flame_rl.tools.side_runs import train_seeds

            return train_seeds(config, stop, arguments)
        _run(config, stop, arguments)
    return stop.exit_code


def networks_of(path: Path) -> dict[str, object]:
    """The settings of the networks that --from takes."""
    from flame_rl.run.transfer import settings_of_networks  # few runs begin with another

    return settings_of_networks(path)


def resumed_config(folder: Path, arguments: Sequence[str]) -> TrainConfig:
    """The configuration of the run in `folder`, changed by the flags on the command line. Raises
    UsageError if the folder holds no run, or if a flag would change its results."""
    saved = run_folder.saved_config(folder)
    given, _ = parse(arguments, saved)
    run_folder.refuse_another_run(saved, given)
    if given.output.output != saved.output.output:
        raise UsageError(f"--output: a resumed run stays in its folder, {folder}; leave it out")
    experiment = given.experiment
    until, longer = experiment.env_steps, experiment.iterations != saved.experiment.iterations
    if longer and until is not None and until == saved.experiment.env_steps:
        raise UsageError(f"--iterations: the run ends by --env-steps {until}; set that instead")
    return given


def _run(config: TrainConfig, stop: StopSignal, arguments: Sequence[str]) -> None:
    """Train, and report to the console and the run folder, which keeps the command's arguments."""
    from flame_rl.backends.select import where_collected
    from flame_rl.run.trainer import Trainer

    here = Path.cwd()  # an environment may change it
    run_folder.check_output(config)
    if config.output.tensorboard:
        require("tensorboard", "tensorboard", "tensorboard")
    if (tracker := config.output.track) is not None:
        require(tracker, tracker, tracker)
    if notice := where_collected(config):
        say(f"{notice}\n")
    with contextlib.ExitStack() as ending:
        trainer = ending.enter_context(Trainer(config, stop=stop, reports=True))
        if config.output.reproduce is None:
            folder = ending.enter_context(run_folder.hold_folder(config))
            if trainer.replay is not None:
                trainer.replay.folder = folder / run_folder.REPLAY_NAME
        trainer.begin()
        done, wanted = trainer.totals.iterations, config.experiment.iterations
        if done > wanted and config.experiment.env_steps is None:
            raise UsageError(f"--iterations: {done} are done already, {wanted} asked; name more")
        if trainer.note:
            say(f"{trainer.note}\n")
        for warning in trainer.warnings:
            warn(f"warning: {warning}")
        if config.output.reproduce is not None:
            for episode in trainer.reproduce():
                own = trainer.learner.rewards.raw_return(episode)
                say(f"Return {own} in {episode.length} steps; nothing failed.")
            return
        for notice in trainer.learner.notices:
            say(f"{notice}\n")
        if trainer.replay is not None:
            trainer.replay.recall()
        run_folder.record_start(folder, arguments, done)
        shown = run_folder.path_to_show(folder, here)
        console, best = train_and_report(trainer, folder, shown)
        trainer.close()
        console.summary(stop.is_set(), best)
        if config.output.plot and trainer.totals.iterations:
            from flame_rl.report.figures import plot_run

            plot_run(folder)
        say(f"Run folder: {shown}\n{how_to_go_on(trainer, shlex.quote(str(shown)))}")


def how_to_go_on(trainer: Trainer, folder: str) -> str:
    """The commands to type next, with the run folder."""
    from flame_rl.run.results import ended, reached

    done, experiment = trainer.totals, trainer.config.experiment
    command = typed(f"--resume {folder}")
    if not done.iterations:
        return f"No iteration is finished; begin again with:\n  {command}"
    if not ended(experiment, done):
        return f"Saved after {done.iterations} iterations; go on with:\n  {command}"
    more = f"--iterations {2 * experiment.iterations}"
    if reached(experiment, done):
        more = "--stop-at none"
    elif experiment.env_steps is not None:
        more = f"--env-steps {2 * experiment.env_steps}"
    lines, watching = ["Evaluate it, or train it for longer:", typed(f"evaluate {folder}")], ""
    if trainer.spec.renders:
        lines[0] = "Evaluate it, watch it, or train it for longer:"
        watching = "" if has_display() else " --video film.mp4"
        lines.append(f"{typed(f'watch {folder}', 'video')}{watching}")
    return "\n  ".join([*lines, f"{command} {more}"])


def train_and_report(
    trainer: Trainer, folder: Path, shown: Path
) -> tuple[ConsoleReporter, tuple[float, int]]:
    """Do and report the remaining iterations; save what was learned, whatever ends them. `shown` is
    the folder as errors name it. Returns `Checkpointer.best`, too."""
    from flame_rl.report import Reporters, tables
    from flame_rl.report.console import ConsoleReporter
    from flame_rl.report.trackers import TrackReporter
    from flame_rl.run.checkpoint import Checkpointer, save_weights
    from flame_rl.run.results import ended

    config, done = trainer.config, trainer.totals
    run_folder.write_config(folder, config)
    learner, begun = trainer.learner, trainer.tables
    metrics = learner.algorithm.metrics
    tables.refuse_names_of_columns(learner.rewards.names, metrics)
    row_of = {
        run_folder.METRICS_NAME: partial(tables.metrics_row, metrics),
        tables.TIMING_NAME: tables.timing_row,
    }
    if (every := config.experiment.evaluate_every) is not None:
        name = run_folder.EVALUATIONS_NAME
        row_of[name] = tables.evaluations_row
        if not ended(config.experiment, done):
            begun = {**begun, name: tables.scheduled_evaluations(begun.get(name, b""), every)}
    files = [tables.TableReporter(folder / name, begun, row) for name, row in row_of.items()]
    console = ConsoleReporter(config, trainer.spec, trainer.distributed, done)
    trainer.listen(console)
    consumers = [*files, console]
    names = ["tensorboard"] * config.output.tensorboard + [config.output.track]
    consumers += [TrackReporter(folder, config, name, trainer.stop) for name in filter(None, names)]
    reporters = Reporters(consumers)
    checkpoints = Checkpointer(folder, trainer, {t.path.name: t.text for t in files})

    def save() -> None:
        # Each is tried, and what matters most comes first.
        with contextlib.ExitStack() as ending:
            ending.callback(reporters.close)
            ending.callback(save_weights, folder, learner.weights())
            checkpoints.save()

    try:
        if config.experiment.from_ is not None and not done.iterations:
            checkpoints.begin()  # so that the run can go on without the one that it began with
        for result in trainer:
            reporters.report(result)
            checkpoints.report(result)
    except Interrupted:
        pass
    except BaseException as error:
        if isinstance(error, RunError) and error.episode is not None:
            words = typed(f"--resume {shlex.quote(str(shown))} --reproduce {error.episode}")
            error.add_note(f"This command collects that episode alone, in one process:\n  {words}")
        try:
            save()
        except RunError as another:
            if str(another) != str(error):
                error.add_note(f"error: {another}")
        if isinstance(error, UsageError) and trainer.totals.iterations > done.iterations:
            # It began, and was saved: no mistake in the command, but the end of a run.
            raise RunError("\n".join([str(error), *getattr(error, "__notes__", [])])) from error
        raise
    size = sum(array.nbytes for array in learner.state_dict().values())
    if trainer.stop.is_set() and size >= _LARGE:
        say(f"Saving {size / 1e9:.1f} GB; another signal ends the run without that")
    if not trainer.totals.iterations:  # interrupted in the first one
        checkpoints.begin()
    save()
    return console, checkpoints.best
