"""Print a run: a header, lines of progress, a summary; on a terminal a progress bar."""

import math
import sys
import time
from typing import TYPE_CHECKING

from flame_rl.report.header import RULE, header, reached_in_words
from flame_rl.report.trackers import numbers_of
from flame_rl.run import results
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import say
from flame_rl.wire.messages import CollectRequest, EnvironmentSpec

if TYPE_CHECKING:
    from flame_rl.report.bar import RunBar

LINE_EVERY = 10
# Iterations that take long, and waits without a terminal, get a line this often.
LINE_EVERY_SECONDS = 30.0
LONG_EPISODE_SECONDS = 10.0  # a first episode that takes longer is told while it plays


class ConsoleReporter:
    """Prints to standard output; its summary counts the time since it was constructed."""

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, distributed: bool, done: results.Totals
    ) -> None:
        """Print the header; `done` are the totals of a resumed run when it starts again."""
        self._config, self._spec, self._done = config, spec, done
        self._experiment = experiment = config.experiment
        self._began = self._said_at = self._reported_at = time.perf_counter()
        self._left_said_at = -math.inf
        self._last: results.IterationResult | None = None
        self._evaluation = ""  # the line of the latest one
        self._collection: tuple[str, int] | None = None  # its stream and iteration
        self._collecting_since = self._began
        self._told_of_length = self._told_of_atoms = False
        self._waiting_said_at: float | None = None
        self._retries = self._undone = 0
        self._bar: RunBar | None = None
        say(header(config, spec, distributed, done))
        if sys.stdout is not None and sys.stdout.isatty():
            from flame_rl.report import bar  # rich takes a while

            counted = "Iteration" if experiment.env_steps is None else "Env steps"
            total = experiment.env_steps or experiment.iterations
            self._bar = bar.RunBar(counted, total, self._completed(done))

    def report(self, result: results.IterationResult) -> None:
        self._last, self._reported_at = result, time.perf_counter()
        self._retries += result.timing.retries
        self._undone += result.metrics.get("update_scale") == 0
        if result.evaluation is not None:
            done = f"Evaluation after iteration {result.iteration}"
            self._evaluation = f"  {done}: {result.evaluation}"
        self._advance(self._completed(result.totals))
        self._show("collecting", "")
        if (beyond := results.beyond_atoms(self._config, result)) and not self._told_of_atoms:
            self._told_of_atoms = True
            self.say(f"  {beyond}")
        last = results.ended(self._experiment, result.totals)
        late = self._reported_at - self._said_at >= LINE_EVERY_SECONDS
        if result.iteration % LINE_EVERY == 0 or last or late or result.evaluation is not None:
            self._said_at = self._reported_at
            # An iteration without an update has no loss.
            loss = f"{result.metrics['loss']:z.4f}" if "loss" in result.metrics else "-"
            done = f"Iteration {result.iteration:3d} | Mean Reward: {result.reward_mean:8.1f}"
            self.say(f"{done} | Loss: {loss}")
            if result.evaluation is not None:
                self.say(self._evaluation)
        due = self._reported_at - self._left_said_at >= LINE_EVERY_SECONDS  # a bar shows it always
        if self._bar is None and due and self._seconds_left() >= LINE_EVERY_SECONDS:
            self._left_said_at = self._reported_at
            self.say(f"  {self._left()}")
        if self._config.output.verbose:
            self.say(details(result))

    def collecting(self, request: CollectRequest, episodes: int, env_steps: int) -> None:
        """Show how much has been played: below the bar, or in a line every half a minute."""
        now, training = time.perf_counter(), request.stream == "training"
        collection = request.stream, request.iteration
        if collection != self._collection:
            self._collection, self._collecting_since = collection, now
        seconds, wanted = now - self._collecting_since, len(request.indices) * request.agents
        of_episodes, of_steps, done = f" of {wanted}", "", episodes / wanted
        if request.steps is not None:
            of_episodes, of_steps = "", f" of {request.steps:,}"
            done = env_steps / request.steps
        text = (
            f"Iteration {request.iteration:3d}: {episodes}{of_episodes} "
            f"{'' if training else 'evaluation '}episodes, {env_steps:,}{of_steps} env "
            f"steps, {env_steps / max(seconds, 1e-3):,.0f} a second"
        )
        if request.steps is None and done >= 1 and training:
            text = f"Iteration {request.iteration:3d}: learning from {env_steps:,} env steps"
        totals = self._last.totals if self._last else self._done
        # Not of what is prefetched.
        if training and request.iteration == totals.iterations:
            counts_steps = self._experiment.env_steps is not None
            more = env_steps if counts_steps else min(done, 0.99)
            self._advance(self._completed(totals) + more)
        self._show("collecting", text)
        if not self._told_of_length and (episodes or seconds >= LONG_EPISODE_SECONDS):
            self._told_of_length = True
            if not episodes:
                limit = self._spec.time_limit
                length = "no time limit" if limit is None else f"a limit of {limit:,} steps"
                played = f"After {seconds:.0f} s and {env_steps:,} env steps, no episode has ended"
                self.say(f"  {played}; they have {length} (see --max-episode-steps)")
        if self._bar is None and now - self._said_at >= LINE_EVERY_SECONDS:
            self._said_at = now
            self.say(f"  {text}, {duration_in_words(now - self._began)} since the start")

    def waiting(self, text: str) -> None:
        """Show what is waited for: below the bar, or in a line every `LINE_EVERY_SECONDS`."""
        self._show("waiting", text)
        now, said_at = time.perf_counter(), self._waiting_said_at
        if not text:
            self._waiting_said_at = None
        elif self._bar is None and (said_at is None or now - said_at >= LINE_EVERY_SECONDS):
            self._waiting_said_at = now
            self.say(text)

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def summary(self, interrupted: bool, best: tuple[float, int]) -> None:
        """Print the closing lines; after an interrupt, they cover what was done until then. `best`:
        the best mean return, of an evaluation where there are some, and its iteration."""
        if results.ended(self._experiment, self._done):  # there was nothing to do
            return
        seconds, last = time.perf_counter() - self._began, self._last
        total = last.episodes if last else self._done.episodes
        new = total - self._done.episodes
        resumed = " since the run was resumed" if self._done.iterations else ""
        episodes = f"{total}, {new}{resumed}" if resumed else total
        lines = [
            f"\n{RULE}",
            "Training Interrupted!" if interrupted else "Training Complete!",
            f"  Total time: {seconds:.2f}s{resumed}",
            f"  Episodes: {episodes} ({new / seconds:.1f} episodes/sec)",
        ]
        if self._retries:
            lines.append(f"  Tasks sent again: {self._retries}")
        if self._undone:
            remedy = "a smaller --learning-rate or greater --initial-log-std"
            undone = f"{self._undone}, all beyond the KL limit"
            lines.append(f"  Updates undone: {undone} (try {remedy})")
        if last and last.metrics.get("gradient_steps") == 0:
            lines.append("  Gradient steps: none; --warm-up-steps lasts longer than the run")
        if last:
            lines.append(f"  Final Mean Reward: {last.reward_mean:.1f}")
            outcomes = last.outcomes.items()
            lines += [f"  Final {name}: {mean:.2f}" for name, mean in outcomes if mean == mean]
        if self._evaluation:
            lines.append(self._evaluation)
        # Of fragments, whose best it is, and not of the episodes that ended.
        trained = last and self._experiment.evaluate_every is None
        final = last.reward_mean if trained else last and last.totals.mean_return
        if final is not None and final < best[0]:
            lines.append(f"  Best Mean Reward: {best[0]:.1f}, in iteration {best[1]} (--best)")
        if last and results.reached(self._experiment, last.totals):
            lines.append(f"  Stopped early: {reached_in_words(self._experiment, last.totals)}")
        self.say("\n".join([*lines, RULE]))

    def say(self, text: str) -> None:
        """Print a line, of a backend's too."""
        # Without a bar not by rich, so that a pipe gets exactly this text, line by line.
        (self._bar.console.print if self._bar is not None else say)(text)

    def _show(self, what: str, text: str) -> None:
        if self._bar is not None:
            self._bar.below[what] = text

    def _completed(self, totals: results.Totals) -> int:
        return totals.iterations if self._experiment.env_steps is None else totals.env_steps

    def _advance(self, completed: float) -> None:
        if self._bar is not None:
            mean = f"return {self._last.reward_mean:.1f}" if self._last else ""
            shown = {"completed": completed, "returns": mean, "left": self._left()}
            self._bar.update(self._bar.task, **shown)

    def _seconds_left(self) -> float:
        """Until the run's end, by its speed so far; 0 before that is known, as during a warm-up."""
        if self._last is None or self._last.metrics.get("gradient_steps") == 0:
            return 0.0
        begun = results.progress(self._experiment, self._done)
        done = results.progress(self._experiment, self._last.totals)
        spent, since = self._reported_at - self._began, time.perf_counter() - self._reported_at
        return max(0.0, spent * (1 - done) / (done - begun) - since)

    def _left(self) -> str:
        seconds = self._seconds_left()
        at_most = "" if self._experiment.stop_at is None else "at most "
        return f"{at_most}about {duration_in_words(seconds)} left" if seconds >= 1 else ""


def details(result: results.IterationResult) -> str:
    """What --verbose prints of an iteration."""
    lines = [f"  iteration {result.iteration}"]
    for group, numbers in numbers_of(result).items():
        if numbers:
            shown = ", ".join(f"{name} {value:.6g}" for name, value in numbers.items())
            lines.append(f"    {group:12}{shown}")
    return "\n".join(lines)


def duration_in_words(seconds: float) -> str:
    """Seconds in words: 40 s, 5 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
