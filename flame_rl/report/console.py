"""Print a run: a header, a line every ten iterations or half a minute, a summary; on a terminal a
progress bar."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from flame_rl.run.checks import (
    about_goals,
    acted,
    environments,
    few_updates,
    most_env_steps,
    observed,
)
from flame_rl.run.evaluation import Evaluation
from flame_rl.run.results import IterationResult, Totals, ended, progress, reached
from flame_rl.settings.algorithms import OnPolicy
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.presets import STEPS_PER_ITERATION
from flame_rl.system.output import say
from flame_rl.wire.messages import CollectRequest, EnvironmentSpec

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

RULE = "=" * 60
LINE_EVERY = 10
# Iterations that take long get a line more often.
LINE_EVERY_SECONDS = 30.0
# A first episode that takes longer is told while it plays.
LONG_EPISODE_SECONDS = 10.0
# A run that will take longer is told of once its first iteration has ended, with a shorter one.
LONG_RUN_SECONDS = 300.0
# After this number of iterations in which all returns were the same, a line says so.
SAME_ITERATIONS = 20
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
        self._config, self._spec = config, spec
        self._began = self._said_at = self._reported_at = time.perf_counter()
        self._last: IterationResult | None = None
        # The latest evaluation with the number of its iteration, and whether a line shows it.
        self._evaluation: tuple[int, Evaluation] | None = None
        self._evaluation_said = True
        # The collection that is shown, when it began, and what is below the bar.
        self._collection: tuple[str, int] | None = None
        self._collecting_since = self._began
        self._told_of_length = False
        self._below = {"collecting": "", "waiting": ""}
        self._retries = self._undone = 0
        # What all returns of the run have been so far; None where they differ.
        self._same_return: float | None = None
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
            f"  Observation: {observed(spec)}{_policy_alone(config)}\n"
            f"  Action dim: {spec.action_dim}\n"
            f"  Continuous actions: {spec.continuous}\n"
            f"  Actions: {acted(spec)}\n"
            f"{_masks(config, spec)}{_goals(config, spec)}{_device(config)}"
            f"{_agents(spec)}{_stops(config)}"
            f"{_limits(config, spec, distributed)}{_amounts(config, spec)}"
            "\n"
            f"{self._start(mode)}"
        )
        if sys.stdout is not None and sys.stdout.isatty():
            self._start_bar()

    def _start(self, mode: str) -> str:
        if self._is_finished:
            why = f"; {_reached(self._config, self._done)}" if self._is_reached(self._done) else ""
            return f"This run is finished, after {self._done.iterations} iterations{why}."
        going_on = f"\nGoing on after iteration {self._done.iterations - 1}"
        return f"Starting {mode} training...{going_on if self._done.iterations else ''}"

    @property
    def _is_finished(self) -> bool:
        """Whether there was nothing to do from the start."""
        return ended(self._config.experiment, self._done)

    def _is_reached(self, totals: Totals) -> bool:
        return reached(self._config.experiment, totals)

    def _start_bar(self) -> None:
        # Here and not above: only a terminal needs it.
        from rich.console import Console
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._progress = Progress(
            TextColumn("Env steps" if self._counts_steps else "Iteration"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[returns]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        experiment = self._config.experiment
        self._progress.add_task(
            "",
            total=experiment.env_steps if self._counts_steps else experiment.iterations,
            completed=self._completed(self._done),
            returns="",
            left="",
        )
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live = Live(self._progress, console=console, transient=True)
        self._live.start()

    def report(self, result: IterationResult) -> None:
        self._last, self._reported_at = result, time.perf_counter()
        self._retries += result.timing.retries
        self._undone += result.losses.get("update_scale") == 0
        if result.evaluation is not None:
            self._evaluation = result.iteration, result.evaluation
            self._evaluation_said = False
        self._advance(self._completed(result.totals))
        self._show("collecting", "")
        first = result.iteration == self._done.iterations
        last = ended(self._config.experiment, result.totals)
        now = time.perf_counter()
        late = now - self._said_at >= LINE_EVERY_SECONDS
        if result.iteration % LINE_EVERY == 0 or last or late:
            self._said_at = now
            self._print(
                f"Iteration {result.iteration:3d} | Mean Reward: {result.reward_mean:8.1f} | "
                f"Loss: {_loss(result)}"
            )
            if not self._evaluation_said:
                self._evaluation_said = True
                self._print(self._evaluated())
        whole_run = "" if result.iteration else self._whole_run(result)
        # A bar shows what is left all the time.
        shown = self._live is not None or self._seconds_left() < LINE_EVERY_SECONDS
        if whole_run or ((first or late) and not shown):
            self._print(f"  {whole_run or self._left()}")
        self._compare_returns(result)
        if self._config.output.verbose:
            self._print(_details(result))

    def _compare_returns(self, result: IterationResult) -> None:
        """Say so where nothing was there to learn from since the run began."""
        if result.iteration == 0:
            self._same_return = result.reward_min
        if {result.reward_min, result.reward_max} != {self._same_return}:
            self._same_return = None
        elif result.iteration + 1 == SAME_ITERATIONS:
            self._print(
                f"  All {result.episodes:,} episodes so far have had the same return, "
                f"{result.reward_min:g}: nothing tells good actions from bad ones yet. Rewards on "
                "the way, an easier beginning or more exploration may help"
            )

    def _advance(self, completed: float) -> None:
        """Move the bar."""
        if self._progress is None:
            return
        returns = []
        if self._last is not None:
            returns.append(f"return {self._last.reward_mean:.1f}")
        if self._evaluation is not None:
            returns.append(f"evaluation {self._evaluation[1].reward_mean:.1f}")
        if (wanted := self._config.experiment.stop_at) is not None:
            returns.append(f"stops at {wanted:g}")
        self._progress.update(
            self._progress.task_ids[0],
            completed=completed,
            returns=", ".join(returns),
            left=self._left(),
        )

    def _evaluated(self) -> str:
        iteration, evaluation = self._evaluation
        return f"  Evaluation after iteration {iteration}: {evaluation}"

    def _seconds_left(self) -> float:
        """Until the end of the run, as far as its speed so far tells; 0 before the first iteration
        has ended."""
        if self._last is None:
            return 0.0
        experiment = self._config.experiment
        begun, done = progress(experiment, self._done), progress(experiment, self._last.totals)
        spent, since = self._reported_at - self._began, time.perf_counter() - self._reported_at
        return max(0.0, spent * (1 - done) / (done - begun) - since)

    def _left(self) -> str:
        seconds = self._seconds_left()
        return f"about {_duration(seconds)} left" if seconds >= 1 else ""

    def _whole_run(self, result: IterationResult) -> str:
        """What a long run of iterations like the first comes to, and a shorter one."""
        experiment, steps, seconds = self._config.experiment, result.env_steps, self._seconds_left()
        fixed = experiment.env_steps is None and experiment.steps_per_iter is None
        if not fixed or seconds < LONG_RUN_SECONDS or steps < 2 * STEPS_PER_ITERATION:
            return ""
        each, iterations = STEPS_PER_ITERATION, experiment.iterations
        return (
            f"The run: {iterations * steps:,} env steps at this length of episodes, about "
            f"{_duration(seconds)} here. With --steps-per-iter {each} it has "
            f"{iterations * each:,}: about {_duration(seconds * each / steps)}"
        )

    def collecting(self, request: CollectRequest, episodes: int, env_steps: int) -> None:
        """Show how much of a request has been played: below the bar, or in a line every
        `LINE_EVERY_SECONDS`."""
        now = time.perf_counter()
        collection = request.stream, request.iteration
        if collection != self._collection:
            self._collection, self._collecting_since = collection, now
        seconds = now - self._collecting_since
        wanted = len(request.indices) * request.agents
        text = (
            f"Iteration {request.iteration:3d}: {episodes} of {wanted} "
            f"{'' if request.stream == 'training' else 'evaluation '}episodes, {env_steps:,} env "
            f"steps, {env_steps / max(seconds, 1e-3):,.0f} a second"
        )
        if episodes >= wanted and request.stream == "training":
            text = f"Iteration {request.iteration:3d}: learning from {env_steps:,} env steps"
        totals = self._last.totals if self._last else self._done
        # Not of what is collected ahead.
        if request.stream == "training" and request.iteration == totals.iterations:
            more = env_steps if self._counts_steps else min(episodes / wanted, 0.99)
            self._advance(self._completed(totals) + more)
        self._show("collecting", text)
        if not self._told_of_length and (episodes or seconds >= LONG_EPISODE_SECONDS):
            self._told_of_length = True
            if not episodes:
                self._print(f"  {self._long_episodes(wanted, env_steps, seconds)}")
        if self._live is None and now - self._said_at >= LINE_EVERY_SECONDS:
            self._said_at = now
            self._print(f"  {text}, {_duration(now - self._began)} since the start")

    def _long_episodes(self, wanted: int, env_steps: int, seconds: float) -> str:
        """That no episode has ended yet, and how long they may be."""
        limit = self._spec.time_limit
        length = "without a time limit (--max-episode-steps sets one)"
        if limit is not None:
            length = f"of up to {limit:,} steps (--max-episode-steps sets fewer)"
        return (
            f"After {seconds:.0f} s and {env_steps:,} env steps, no episode has ended: {wanted} "
            f"are asked for, {length}"
        )

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
        self._show("waiting", text)
        if self._live is not None:
            return
        now = time.perf_counter()
        if not text:
            self._waiting_said_at = None
        elif self._waiting_said_at is None or now - self._waiting_said_at >= WAIT_LINE_SECONDS:
            self._waiting_said_at = now
            self._print(text)

    def _show(self, what: str, text: str) -> None:
        """Replace one of the texts below the bar."""
        self._below[what] = text
        if self._live is not None:
            from rich.console import Group
            from rich.text import Text

            # The console wraps nothing by itself, and would cut the text off.
            below = [Text(each, no_wrap=False, overflow="fold") for each in self._below.values()]
            self._live.update(Group(self._progress, *filter(None, below)))

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
        if self._last and self._last.losses.get("gradient_steps") == 0:
            lines.append(
                "  Gradient steps: none; the run ended within --warm-up-steps (choose fewer, or a "
                "longer run)"
            )
        if self._last:
            lines.append(f"  Final Mean Reward: {self._last.reward_mean:.1f}")
            lines += [f"  Final {name}: {mean:.2f}" for name, mean in self._last.outcomes.items()]
        if self._evaluation:
            lines.append(self._evaluated())
        if self._last and self._is_reached(self._last.totals):
            lines.append(f"  Stopped early: {_reached(self._config, self._last.totals)}")
        self._print("\n".join([*lines, RULE]))

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text)
        else:
            # Not by rich, so that a pipe gets exactly this text, line by line.
            say(text)


def _reached(config: TrainConfig, totals: Totals) -> str:
    """That the run ended by --stop-at, in words."""
    return (
        f"the mean return {totals.mean_return:.1f} reached --stop-at {config.experiment.stop_at:g}"
    )


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
        f"    returns     {result.reward_mean:.1f} ± {result.reward_std:.1f}, "
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
    outcomes = [f"{name} {value:.2f}" for name, value in result.outcomes.items()]
    shown = {"parts       ": parts, "outcomes    ": outcomes}
    return [f"    {title}{', '.join(each)}" for title, each in shown.items() if each]


def _device(config: TrainConfig) -> str:
    device = config.execution.device
    return f"  Device: {device}\n" if device == "cuda" else ""


def _policy_alone(config: TrainConfig) -> str:
    keys = config.experiment.policy_observations
    return f"; the policy observes {', '.join(keys)} alone" if keys else ""


def _masks(config: TrainConfig, spec: EnvironmentSpec) -> str:
    if spec.masked:
        return (
            f'  Action masks: {spec.action_mask}["action_mask"]; what they forbid is never chosen '
            "(--no-action-mask ignores them)\n"
        )
    return "" if config.experiment.action_mask else "  Action masks: ignored\n"


def _goals(config: TrainConfig, spec: EnvironmentSpec) -> str:
    told = getattr(config.algorithm, "hindsight", "none") != "none" or not about_goals(spec)
    return "" if told else f"  Goals: {about_goals(spec)}\n"


def _stops(config: TrainConfig) -> str:
    experiment = config.experiment
    if experiment.stop_at is None:
        return ""
    what = "an iteration" if experiment.evaluate_every is None else "an evaluation"
    return f"  Stops at: a mean return of {experiment.stop_at:g} in {what}\n"


def _agents(spec: EnvironmentSpec) -> str:
    count = len(spec.agents)
    return f"  Agents: {count}, with an episode and a return each\n" if count else ""


def _duration(seconds: float) -> str:
    """Seconds in words: 40 s, 5 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _limits(config: TrainConfig, spec: EnvironmentSpec, distributed: bool) -> str:
    """How long an episode may be, and how many environments there are."""
    limit = "none" if spec.time_limit is None else f"{spec.time_limit:,} steps"
    return f"  Time limit: {limit}\n  Environments: {environments(config, spec, distributed)}\n"


def _amounts(config: TrainConfig, spec: EnvironmentSpec) -> str:
    experiment, most = config.experiment, most_env_steps(config.experiment, spec)
    iterations, steps = experiment.iterations, experiment.steps_per_iter
    episodes = experiment.episodes_per_iter * spec.agent_count
    each = f"  Episodes per iteration: {episodes}\n"
    total = "unknown, without a time limit" if most is None else f"at most {most:,}"
    total = f"  Total episodes: {iterations * episodes}\n  Total steps: {total}\n"
    if steps is not None:
        each = f"  Steps per iteration: about {steps}\n"
        total = f"  Total steps: about {most:,}\n"
    few = ""
    # With replay, an iteration has many updates.
    if isinstance(config.algorithm, OnPolicy) and (words := few_updates(experiment, spec)):
        few = f"  Few updates: {words}\n"
    if experiment.env_steps is not None:
        return f"{each}  Total steps: {most:,}, to the end of an iteration\n{few}"
    return f"  Training iterations: {iterations}\n{each}{total}{few}"
