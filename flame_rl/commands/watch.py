"""`main.py watch RUN`: show what a policy does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from flame_rl.commands.evaluate import PolicyCommand, headline
from flame_rl.settings.checks import Count
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import UsageError, say, warn
from flame_rl.system.machine import has_display
from flame_rl.system.signals import StopSignal, stop_on_signals, unless_stopped


@dataclass(frozen=True)
class WatchCommand(PolicyCommand):
    """Watch a policy, in a window or as a film.

    The episodes are the first ones of `main.py evaluate` with the same seed, step for step.
    """

    run: tyro.conf.Positional[Path | None] = None
    episodes: Count = 1

    env: str | None = None
    """With --untrained: the environment; of a run: another one than its own."""

    video: Path | None = None
    """Write a film, .mp4 or .gif, and open no window."""

    untrained: bool = False
    """Instead of a run: the policy with which training in --env begins."""

    def __post_init__(self) -> None:
        if self.untrained != (self.run is None) or (self.untrained and self.env is None):
            raise UsageError("watch: name a run folder, or --env NAME --untrained")


def watch(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it."""
    command = parse_command(WatchCommand, arguments, "watch")
    with stop_on_signals() as stop:
        from rich.progress import Progress

        from flame_rl.run.trainer import Trainer
        from flame_rl.tools.watching import cannot_be_shown, show

        environment, here = command.environment, {"local": True, "workers": 0, "device": "cpu"}
        here["trust"] = command.trust
        if command.untrained:
            made = Trainer(TrainConfig(**environment, **here), stop=stop)
        else:
            here["environment"] = environment
            made = Trainer.load(command.run, command.best, stop=stop, **here)
        with made as trainer:
            if not trainer.spec.renders:
                raise cannot_be_shown(trainer.spec.env_id, "rgb_array")
            if command.video is None and not has_display():
                raise UsageError("there is no display for a window (DISPLAY): use --video FILE.mp4")
            for warning in trainer.warnings:
                warn(f"warning: {warning}")
            request = trainer.evaluation_request(command.episodes, command.explore, command.seed)
            agents, snapshot = trainer.spec.agents, trainer.learner.snapshot()
            say(headline(trainer, command.episodes * trainer.spec.agent_count, command.explore))
            # Only on a terminal; a window shows by itself that something happens.
            with Progress("Drawing, {task.completed} env steps", transient=True) as bar:
                task = bar.add_task("", visible=command.video is not None)
                episodes = show(snapshot, request, command.video, stop, lambda: bar.advance(task))
                for number, episode in enumerate(episodes):
                    own = trainer.learner.rewards.raw_return(episode)
                    who = f", {agents[number % len(agents)]}" if agents else ""
                    earned = f"return {own:.1f} in {episode.length} steps"
                    say(f"  Episode {episode.index}{who}: {earned}")
        if command.video is not None:
            say(f"Film: {command.video}{_tracked(command, trainer.config, stop)}")
    return stop.exit_code


def _tracked(command: WatchCommand, config: TrainConfig, stop: StopSignal) -> str:
    """Send the film to the run's tracker, where it has one; what to say of it."""
    from flame_rl.actor.failure import summary
    from flame_rl.report.trackers import send_film
    from flame_rl.run.folder import run_of

    if command.run is None or (tracker := config.output.track) is None:
        return ""
    folder, film = run_of(command.run).absolute(), command.video.absolute()
    try:
        unless_stopped(stop, lambda: send_film(folder, config, film))  # in a thread: it may block
    except (Exception, SystemExit) as error:  # of any kind: it is not this package's
        warn(f"warning: {tracker} has not got the film: {summary(error)}")
        return ""
    return f", which {tracker} has, too"
