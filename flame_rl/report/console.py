"""Print a run: a header, a line every ten iterations or half a minute, a summary; on a terminal a
progress bar."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from flame_rl.run.results import IterationResult, Totals, progress
from flame_rl.settings.config import TrainConfig
from flame_rl.system.output import say
from flame_rl.wire.messages import EnvironmentSpec

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

RULE = "=" * 60
LINE_EVERY = 10
# Iterations that take long get a line more often.
LINE_EVERY_SECONDS = 30.0
# Without a terminal, a wait gets a line this often.
WAIT_LINE_SECONDS = 30.0


class ConsoleReporter:
    """Prints to standard output; its summary counts the time since it was constructed."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvironmentSpec,
        distributed: bool,
        done: Totals,
    ) -> None:
        """Print the header; `done` are the totals of a resumed run when it starts again."""
        self._done = done
        self._config = config
        self._began = self._said_at = time.perf_counter()
        self._last: IterationResult | None = None
        self._retries = self._undone = 0
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._waiting_said_at: float | None = None
        mode = "distributed" if distributed else "local"
        self._print(
            f"{RULE}\n"
            f"{mode.title()} {config.algorithm.title} on {spec.env_id}"
            f"{' using Flame Runner' if distributed else ''}\n"
            f"{RULE}\n"
            "\n"
            "Configuration:\n"
            f"  Environment: {spec.env_id}\n"
            f"  Observation dim: {spec.observation_dim}\n"
            f"  Action dim: {spec.action_dim}\n"
            f"  Continuous actions: {spec.continuous}\n"
            f"{_device(config)}{_agents(spec)}{_amounts(config)}"
            "\n"
            f"{self._start(mode)}"
        )
        if sys.stdout is not None and sys.stdout.isatty():
            self._start_bar()

    def _start(self, mode: str) -> str:
        if self._is_finished:
            return f"This run is finished, after {self._done.iterations} iterations."
        going_on = f"\nGoing on after iteration {self._done.iterations - 1}"
        return f"Starting {mode} training...{going_on if self._done.iterations else ''}"

    @property
    def _is_finished(self) -> bool:
        """Whether there was nothing to do from the start."""
        return progress(self._config.experiment, self._done) >= 1

    def _start_bar(self) -> None:
        # Here and not above: only a terminal needs it.
        from rich.console import Console
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("Env steps" if self._counts_steps else "Iteration"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("reward {task.fields[reward]}"),
            TimeRemainingColumn(),
        )
        experiment = self._config.experiment
        self._progress.add_task(
            "",
            total=experiment.env_steps if self._counts_steps else experiment.iterations,
            completed=self._completed(self._done),
            reward="",
        )
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live = Live(self._progress, console=console, transient=True)
        self._live.start()

    def report(self, result: IterationResult) -> None:
        self._last = result
        self._retries += result.timing.retries
        self._undone += result.losses.get("update_scale") == 0
        if self._progress is not None:
            self._progress.update(
                self._progress.task_ids[0],
                completed=self._completed(result.totals),
                reward=f"{result.reward_mean:.1f}",
            )
        last = progress(self._config.experiment, result.totals) >= 1
        now = time.perf_counter()
        late = now - self._said_at >= LINE_EVERY_SECONDS
        if result.iteration % LINE_EVERY == 0 or last or late:
            self._said_at = now
            self._print(
                f"Iteration {result.iteration:3d} | Mean Reward: {result.reward_mean:8.1f} | "
                f"Loss: {_loss(result)}"
            )
        if self._config.output.verbose:
            self._print(_details(result))

    @property
    def _counts_steps(self) -> bool:
        return self._config.experiment.env_steps is not None

    def _completed(self, totals: Totals) -> int:
        return totals.env_steps if self._counts_steps else totals.iterations

    def say(self, text: str) -> None:
        """Print a line of a backend's."""
        self._print(text)

    def waiting(self, text: str) -> None:
        """Show what is waited for: below the bar, or in a line every `WAIT_LINE_SECONDS`."""
        if self._live is not None:
            from rich.console import Group
            from rich.text import Text

            # The console wraps nothing by itself, and would cut the text off.
            below = Text(text, no_wrap=False, overflow="fold")
            self._live.update(Group(self._progress, below) if text else self._progress)
            return
        now = time.perf_counter()
        if not text:
            self._waiting_said_at = None
        elif self._waiting_said_at is None or now - self._waiting_said_at >= WAIT_LINE_SECONDS:
            self._waiting_said_at = now
            self._print(text)

    def close(self) -> None:
        """Remove the progress bar."""
        if self._live is not None:
            self._live.stop()
            self._live = self._progress = None

    def summary(self, interrupted: bool) -> None:
        """Print the closing lines; after an interrupt, they cover what was done until then."""
        if self._is_finished:
            return
        seconds = time.perf_counter() - self._began
        total = self._last.episodes if self._last else self._done.episodes
        rate = (total - self._done.episodes) / seconds
        lines = [
            "",
            RULE,
            "Training Interrupted!" if interrupted else "Training Complete!",
            f"  Total time: {seconds:.2f}s",
            f"  Episodes: {total} ({rate:.1f} episodes/sec)",
        ]
        if self._retries:
            lines.append(f"  Tasks sent again: {self._retries}")
        if self._undone:
            lines.append(
                f"  Updates undone: {self._undone}; however small a part, it went beyond --max-kl "
                "(try a smaller --learning-rate, or a greater --initial-log-std)"
            )
        if self._last:
            lines.append(f"  Final Mean Reward: {self._last.reward_mean:.1f}")
        self._print("\n".join([*lines, RULE]))

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text)
        else:
            # Not by rich, so that a pipe gets exactly this text, line by line.
            say(text)


def _loss(result: IterationResult) -> str:
    # An iteration without an update has no loss.
    return f"{result.losses['loss']:z.4f}" if "loss" in result.losses else "-"


def _details(result: IterationResult) -> str:
    timing = result.timing
    seconds = {"collecting": timing.collecting, "updating": timing.updating}
    if result.evaluation is not None:
        seconds["evaluating"] = timing.evaluating
    lines = [
        f"  iteration {result.iteration}",
        f"    rewards     {result.reward_mean:.1f} ± {result.reward_std:.1f}, "
        f"{result.reward_min:.1f} to {result.reward_max:.1f}, "
        f"in episodes of {result.length_mean:.1f} steps",
        *_parts(result),
        "    update      " + ", ".join(f"{n} {value:.4g}" for n, value in result.losses.items()),
        f"    speed       {timing.env_steps_per_second:.0f} env steps/s; seconds "
        + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
        + f" (waiting {timing.waiting:.2f})",
    ]
    if result.evaluation is not None:
        lines.append(f"    evaluation  {result.evaluation}")
    return "\n".join(lines)


def _parts(result: IterationResult) -> list[str]:
    parts = [f"{name} {value:.1f}" for name, value in result.reward_parts.items()]
    return [f"    parts       {', '.join(parts)}"] if parts else []


def _device(config: TrainConfig) -> str:
    device = config.execution.device
    return f"  Device: {device}\n" if device == "cuda" else ""


def _agents(spec: EnvironmentSpec) -> str:
    count = len(spec.agents)
    return f"  Agents: {count}, with an episode and a reward each\n" if count else ""


def _amounts(config: TrainConfig) -> str:
    experiment = config.experiment
    iterations, steps = experiment.iterations, experiment.steps_per_iter
    episodes = experiment.episodes_per_iter
    each = f"  Episodes per iteration: {episodes}\n"
    total = f"  Total episodes: {iterations * episodes}\n"
    if steps is not None:
        each = f"  Steps per iteration: about {steps}\n"
        total = f"  Total steps: about {iterations * steps}\n"
    if experiment.env_steps is not None:
        return f"{each}  Total steps: {experiment.env_steps}, to the end of an iteration\n"
    return f"  Training iterations: {iterations}\n{each}{total}"
