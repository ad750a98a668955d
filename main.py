"""Train a policy: `uv run main.py --env ant`. `--help` lists every flag."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys

import tyro

from flame_rl.config import TrainConfig
from flame_rl.errors import Interrupted, RunError, UsageError
from flame_rl.interrupt import StopSignal, stop_on_signals, unless_stopped
from flame_rl.output import say
from flame_rl.run_folder import check_output, hold_folder, resumed_config, write_config


def main() -> int:
    """The command line. Returns the exit code: 0, 1 for a run that failed, 2 for bad input, 130
    after Ctrl-C, 143 after SIGTERM."""
    try:
        config = tyro.cli(TrainConfig)
        if config.resume is not None:
            config = resumed_config(
                config.resume, lambda default: tyro.cli(TrainConfig, default=default)
            )
        with stop_on_signals() as stop:
            with contextlib.suppress(Interrupted):
                train_command(config, stop)
            return stop.exit_code
    except KeyboardInterrupt:
        return 130
    except (UsageError, RunError, OSError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def train_command(config: TrainConfig, stop: StopSignal) -> None:
    """Construct everything, in one place, and run the loop."""
    # Here and not above, so that --help and mistakes are answered at once.
    from flame_rl.backends.choose import flame_is_configured, local_workers, make_backend

    check_output(config)
    distributed = not config.local and flame_is_configured() and config.reproduce is None
    if not distributed and not config.local:
        workers = local_workers(config)
        where = f"with {workers} local workers" if workers else "in this process"
        say(f"No Flame cluster is configured; collecting {where}.\n")
    # Before torch is imported: workers and executors start in the meantime.
    backend = make_backend(config, distributed, stop)
    with contextlib.ExitStack() as ending:
        ending.callback(backend.close)
        # It takes seconds, in which the user is heard.
        unless_stopped(stop, lambda: importlib.import_module("model"))
        import torch

        import model
        from flame_rl.checkpoint import Checkpointer, restore, save_weights
        from flame_rl.learner.learner import Learner
        from flame_rl.presets import with_presets
        from flame_rl.report import Reporters
        from flame_rl.report.console import TITLES, ConsoleReporter
        from flame_rl.report.files import MetricsReporter, TimingReporter
        from flame_rl.train import reproduce, train

        # Sums that torch divides among cores would make bits depend on how many there are; the
        # learner uses them all in its own way (learner/slices.py).
        torch.set_num_threads(1)
        env_id = model.ENVIRONMENTS.get(config.env.lower(), config.env)
        spec = backend.describe(env_id, config.max_episode_steps, config.simulator)
        if spec.note:
            say(f"{spec.note}\n")
        config = with_presets(config, env_id)
        learner = Learner(config, *model.make_networks(spec, config))
        if config.reproduce is None:
            folder = ending.enter_context(hold_folder(config))
        done, warnings = restore(config, learner)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if config.reproduce is not None:
            episode = reproduce(config, env_id, learner, backend, done)
            say(f"Reward {episode.rewards.sum()} in {episode.length} steps; nothing failed.")
            return
        write_config(folder, config)
        rows = done.iterations
        console = ConsoleReporter(config, spec, distributed, done)
        reporters = Reporters(
            [MetricsReporter(folder, rows), TimingReporter(folder, rows), console]
        )
        checkpoints = Checkpointer(folder, config, learner)

        def save() -> None:
            reporters.close()
            checkpoints.save()
            save_weights(folder, learner.weights())

        try:
            for result in train(config, env_id, learner, backend, stop, done):
                reporters.report(result)
                checkpoints.report(result)
        except Interrupted:
            pass
        except Exception as error:
            if isinstance(error, RunError) and error.episode is not None:
                error.add_note(
                    "This command collects that episode alone, in one process:\n"
                    f"  uv run main.py --resume {shlex.quote(str(folder))} "
                    f"--reproduce {error.episode}"
                )
            try:
                save()
            except RunError as another:
                if str(another) != str(error):
                    error.add_note(f"error: {another}")
            raise
        save()
        backend.close()
        console.summary(interrupted=stop.is_set())
        if config.plot:
            from flame_rl.report.plot import plot_curve

            plot_curve(folder, title=f"{TITLES[config.algorithm]} on {env_id}")
        say(f"Run folder: {folder}")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit: it would wait for threads that wait for a server which never answers.
    os._exit(code)
