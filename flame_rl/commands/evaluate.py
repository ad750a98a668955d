"""`main.py evaluate RUN`: how good a saved policy is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from flame_rl.settings.checks import Count, Seed
from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import UsageError, nothing_but_json, say, warn
from flame_rl.system.files import refuse_unless_file
from flame_rl.system.signals import stop_on_signals

if TYPE_CHECKING:
    from flame_rl.run.trainer import Trainer


@dataclass(frozen=True)
class PolicyCommand:
    """The flags of commands that play episodes with a saved policy."""

    run: tyro.conf.Positional[Path]
    """A run folder, of which the newest checkpoint is taken, or a checkpoint file."""

    episodes: Count = 100
    """Number of complete episodes."""

    explore: bool = False
    """Sample the actions, as in training; otherwise take the mean, the likeliest or the best."""

    best: bool = False
    """Take the best checkpoint of the run folder, not the newest."""

    seed: Seed = 0
    """Seed of the episodes, which are the same for every policy."""

    env: str | None = None
    """Another environment than the run's, named as for training, with the same spaces."""

    env_kwargs: tuple[str, ...] = ()
    """Other arguments of the environment's constructor, name=value."""

    wrapper: tuple[str, ...] = ()
    """Other wrappers around the environment, module:Class."""

    trust: bool = False
    """Run modules that lie in the run folder, too; it may be anybody's code."""

    @property
    def environment(self) -> dict[str, object]:
        """What is given of the environment, by setting."""
        return {"env": self.env, "env_kwargs": self.env_kwargs, "wrapper": self.wrapper}


@dataclass(frozen=True)
class EvaluateCommand(PolicyCommand):
    """Evaluate a saved policy, in episodes that it has not learned from.

    The same policy, episodes and seed give the same output, wherever the episodes are collected: on
    a Flame cluster where one is configured, and otherwise on the cores of this machine.
    """

    reward_weights: tuple[float, ...] | None = None
    """Other weights of the reward's parts than in training, for a run with successor features."""

    local: bool = False
    """Collect on this machine even where a Flame cluster is configured."""

    workers: int | None = None
    """Local worker processes; none: one for each core; 0: collect in this process."""

    record: Path | None = None
    """Write the episodes to this .npz file, as demonstrations for other runs."""

    json: bool = False
    """Print one line of JSON."""

    def __post_init__(self) -> None:
        if self.record is not None:
            if self.record.suffix != ".npz":
                raise UsageError(f"--record: a file whose name ends in .npz, not {self.record}")
            refuse_unless_file(self.record, "--record: ")


def evaluate(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0, or 128 plus the number of the signal that ended it."""
    command = parse_command(EvaluateCommand, arguments, "evaluate")
    with stop_on_signals() as stop:
        from flame_rl.backends.select import where_collected
        from flame_rl.run.trainer import Trainer

        # Nothing is learned, so that no graphics card is needed.
        changes = {"local": command.local, "workers": command.workers, "device": "cpu"}
        changes |= {"environment": command.environment, "trust": command.trust}
        if command.reward_weights is not None:
            changes["reward_weights"] = command.reward_weights
        with (
            nothing_but_json(command.json),
            Trainer.load(command.run, command.best, stop=stop, **changes) as trainer,
        ):
            for warning in trainer.warnings:
                warn(f"warning: {warning}")
            if notice := where_collected(trainer.config):
                warn(notice)
            wanted = command.episodes, command.explore, command.seed, command.record
            result = trainer.evaluate(*wanted)
        if command.json:
            totals = trainer.totals
            info = {"env": trainer.spec.env_id, "algorithm": trainer.config.algorithm_name}
            info |= {"iterations": totals.iterations, "env_steps": totals.env_steps}
            info |= {"explore": command.explore, "seed": command.seed}
            say(json.dumps(info | result.numbers()))
        else:
            say(
                f"{headline(trainer, result.episodes, command.explore)}\n"
                f"  Mean return: {result.reward_mean:.1f}{result.interval}\n"
                f"  Median:      {result.reward_median:.1f}\n"
                f"  Minimum:     {result.reward_min:.1f}\n"
                f"  Maximum:     {result.reward_max:.1f}\n"
                f"  Mean length: {result.length_mean:.1f}"
                + "".join(f"\n  {name}: {value:.2f}" for name, value in result.outcomes.items())
            )
    return stop.exit_code


def headline(trainer: Trainer, episodes: int, explore: bool) -> str:
    """What is shown: the policy, how many episodes it plays, and how it acts in them."""
    title, acted = trainer.config.algorithm.title, "sampled" if explore else "deterministic"
    trained = f"{title} on {trainer.spec.env_id} after {trainer.totals.iterations} iterations"
    return f"{trained}, {episodes} episodes, actions {acted}"
