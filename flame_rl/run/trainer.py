"""`Trainer`: trains, evaluates and acts. Only making one, not the import, imports torch."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import gymnasium
from gymnasium.envs.registration import EnvSpec

from flame_rl.actor.randomness import acting_generator
from flame_rl.backends import Backend, Listener
from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.run import checkpoint, checks, folder, iteration, results, transfer
from flame_rl.run.policy import Action, Policy
from flame_rl.settings.checks import Count, Seed, converted, flag, refuse
from flame_rl.settings.config import Output, TrainConfig, environment_of
from flame_rl.settings.experiment import CALLABLE, EnvironmentSource, environment_id
from flame_rl.settings.keywords import Changes
from flame_rl.system.errors import Interrupted, UsageError
from flame_rl.system.files import write_atomically
from flame_rl.system.machine import ONE_BLAS_THREAD
from flame_rl.system.program import typed
from flame_rl.system.signals import EitherEvent, end_if_stopped, stoppable, unless_stopped
from flame_rl.wire.messages import CollectRequest, Episodes

if TYPE_CHECKING:  # imports torch, which takes seconds
    from flame_rl.learner.off_policy.replay.replay import ReplayMemory


# Called with every result as soon as there is one; "stop" ends the iteration over a Trainer.
Callback = Callable[[results.IterationResult], Literal["stop"] | None]

_REPORTS = ("output", "seeds", "tensorboard", "track", "plot", "verbose")  # of the command line


class Trainer:
    """Trains a policy; iterating over it yields the result of each training iteration.

    Only `save` writes a file: run folder, plot and TensorBoard belong to the command line.

        with Trainer(TrainConfig(env="cartpole", algorithm="ppo")) as trainer:
            for result in trainer:
                print(result.iteration, result.reward_mean)

    Attributes:
        config: as given, with the device and the number of environments chosen here.
        spec, note: the environment's description, and what to know of it and of `from_`.
        distributed: whether episodes are collected on a Flame cluster.
        learner: the networks and the algorithm that updates them.
        totals, before: the progress, and a copy of the state before the latest iteration, if any.
        tables: the text of a resumed run's CSV files, by file name.
        stop: set while the user asks to stop.
        warnings: for the user, about the environment, a resumed run, or the atoms of C51.
    """

    def __init__(
        self,
        config: TrainConfig | EnvironmentSource,
        callback: Callback | None = None,
        stop: threading.Event | None = None,
        reports: bool = False,
    ) -> None:
        """Start the workers or reach the cluster, and make the networks.

        Args:
            config: what to train; an environment alone stands for TrainConfig(env).
            callback: called with every result; if it returns "stop", iterating ends.
            stop: when another thread sets it, the method that is running raises `Interrupted`.
            reports: for the command line, which carries out `config.output` and calls `begin`;
                otherwise settings of output are refused, or without effect.

        Raises UsageError or RunError if the environment, a setting or the cluster cannot be used.
        """
        if not isinstance(config, TrainConfig):
            config = TrainConfig(config)
        if not reports:
            _refuse_reports(vars(config.output))
        env, name = config.experiment.env, config.experiment.env_name
        if name.startswith(CALLABLE) and isinstance(env, str):
            made = f"the function {name.removeprefix(CALLABLE)} made this run's environments"
            raise UsageError(f"--env: {made}; only Python can pass it: Trainer.load(path, env=…)")
        checks.refuse_impossible_sizes(config)
        self.config, self._callback, self.distributed = config, callback, is_distributed(config)
        self.stop = EitherEvent(threading.Event() if stop is None else stop)
        self.warnings: list[str] = []
        self.totals, self.tables = results.Totals(), {}
        self.before: results.RunState | None = None
        self._ended = self._closed = False
        self._process = os.getpid()
        self._closing = contextlib.ExitStack()
        self._policy: Policy | None = None
        # Before torch is imported, so that workers and executors start in the meantime.
        self._workers = self._backend = make_backend(config, self.stop)
        if config.algorithm.overlap and (self.distributed or local_workers(config)):
            self._backend = iteration.PrefetchingBackend(self._workers, self.stop)
        try:
            # Importing torch, and model.py, takes seconds, in which Ctrl-C must work.
            with checks.own_networks():
                from flame_rl.learner.own_model import model_of

                unless_stopped(self.stop, lambda: model_of(config))
                self._make_learner()
            if not reports:
                self._take_networks()
        except BaseException:
            self.close()
            raise

    def _make_learner(self) -> None:
        from flame_rl.learner.make import make_learner
        from flame_rl.learner.training.device import choose_device

        experiment = self.config.experiment
        if isinstance(experiment.env, str):
            env_id = environment_id(experiment.env)
        else:
            env_id = _register(experiment.env, experiment.env_name.removeprefix(CALLABLE))
            self._closing.callback(gymnasium.registry.pop, env_id, None)
        spec = self._workers.describe(environment_of(self.config, env_id))
        # What is said of the environment must not make a checkpoint's differ.
        self.spec, self.note = replace(spec, note="", differs="", slots=None), spec.note
        if differs := spec.differs:
            if isinstance(experiment.env, str):  # no command can name a function
                words = ["check", "--env", experiment.env]
                for name in ("env_kwargs", "wrapper", "observe"):
                    if values := getattr(experiment, name):
                        words += [flag(name), *values]
                differs += f". `{typed(shlex.join(words))}` says more"
            if self.config.execution.strict:
                raise UsageError(f"--strict: {differs}")
            self.warnings.append(differs)
        self.warnings += checks.environment_warnings(self.config, self.spec)
        # Kept with the run, which then goes on with it wherever it is resumed.
        device = choose_device(self.config, self.spec)
        self.config = self.config.changed(device=device, slots=spec.slots)
        checks.fragment_steps(self.config, self.spec)  # refuses what cannot be
        # Large networks take long, too.
        self.learner = unless_stopped(self.stop, lambda: make_learner(self.config, self.spec))
        self._closing.callback(self.learner.algorithm.close)
        if (demonstrations := self.learner.algorithm.demonstrations) is not None:
            self.config = self.config.changed(demonstrations_digest=demonstrations.digest)
        # Samples the actions of `compute_action`; episodes have generators of their own.
        self._generator = acting_generator(experiment.seed)

    def _take_networks(self) -> None:
        """Take another run's networks, where `from_` names one."""
        if (begun := transfer.begin_from(self.learner, self.config, self.spec)) is not None:
            digest, note, warnings = begun
            self.config = self.config.changed(from_digest=digest)
            self.note = "\n".join(filter(None, (self.note, note)))
            self.warnings += warnings

    @classmethod
    def load(
        cls,
        path: str | Path,
        best: bool = False,
        callback: Callback | None = None,
        stop: threading.Event | None = None,
        environment: dict[str, Any] | None = None,
        **changes: Unpack[Changes],
    ) -> Trainer:
        """Continue from a file that `save` wrote, or from the newest checkpoint of a run folder,
        or with `best` its best one.

        Args:
            callback, stop: as in `Trainer`.
            environment: other values of `env`, `env_kwargs` and `wrapper`, to evaluate the policy
                in an environment with the same spaces; another `env` has none of the arguments.
            changes: new values of `iterations` or of settings of `execution`, such as `workers`;
                `env`, where a function made the environments; and `trust`, see `Output`.

        Raises UsageError if there is no sound checkpoint, it does not fit model.py, a change would
        make it another run, or the other environment has other spaces.
        """
        path = Path(path)
        found, warnings = checkpoint.find_checkpoint(path, best)
        saved = TrainConfig.from_data(found.config).changed(trust=False)
        environment, known = environment or {}, {"env", "env_kwargs", "wrapper"}
        if not isinstance(environment, Mapping) or environment.keys() - known:
            refuse("environment", f"a dictionary of {', '.join(sorted(known))}", environment)
        other = {name: value for name, value in environment.items() if value}
        if "env" in other:
            other = {"env_kwargs": ()} | other
        if saved.experiment.env_name.startswith(CALLABLE) and "env" in changes:
            saved = saved.changed(env=changes["env"])
        config = saved.changed(**other, **changes)
        folder.refuse_modules_in(folder.run_of(path), config)
        if not other and (different := folder.differences(saved, config)):
            raise UsageError(f"these changes would make it another run: {different}")
        _refuse_reports(changes)
        trainer = cls(config, callback, stop, reports=True)  # the run's own reports are void
        try:
            trainer._take_up(found, path, elsewhere=bool(other))
        except BaseException:
            trainer.close()
            raise
        # Other warnings are for those who train.
        trainer.warnings = warnings + transfer.changed_networks(found, config, trainer.learner)
        return trainer

    def begin(self, found: tuple[checkpoint.Checkpoint, list[str]] | None = None) -> None:
        """Begin, or continue the run that `config.output.resume` names; `found` is what
        `find_checkpoint` returned for it, if called. Raises UsageError if no checkpoint can be used
        or fits."""
        path = self.config.output.resume
        if path is not None and path.is_dir() and not checkpoint.checkpoints_of(path):
            self.warnings.append("no checkpoint: the run begins at the beginning")
            path = None
        if path is None:
            return self._take_networks()
        newest, damaged = found or checkpoint.find_checkpoint(path)
        if different := folder.differences(TrainConfig.from_data(newest.config), self.config):
            file = folder.run_of(path) / folder.CONFIG_NAME
            raise UsageError(
                f"--resume: {file} is not that of the run's checkpoint: {different}. Write the "
                "run's values back, or begin a new run"
            )
        self._take_up(newest, path)
        self.warnings += damaged + transfer.what_differs(newest, self.config)
        self.warnings += transfer.changed_networks(newest, self.config, self.learner)

    def _take_up(self, saved: checkpoint.Checkpoint, path: Path, elsewhere: bool = False) -> None:
        """Load a checkpoint; `elsewhere` says that its policy acts in another environment."""
        self.totals, self.tables = saved.totals, saved.tables
        if elsewhere:
            transfer.refuse_other_spaces(saved.spec, self.spec)
            self.totals = replace(self.totals, starts={})  # there is nothing to go on with
        else:
            transfer.refuse_another_environment(saved.spec, self.spec, path)
        transfer.load_state(self.learner, saved, path)

    def train(self) -> results.IterationResult:
        """Do one iteration: collect, update, and evaluate where that is due.

        Raises:
            UsageError: all iterations are done, or the environment is at fault.
            RunError: workers kept failing, or the update became NaN. The learner is as it was.
            Interrupted: `stop` was set.
        """
        experiment = self.config.experiment
        if results.ended(experiment, self.totals):
            name = "iterations" if experiment.env_steps is None else "env_steps"
            why = f"all {getattr(experiment, name)} are done"
            if results.reached(experiment, self.totals):
                name, why = "stop_at", f"the mean return has reached {experiment.stop_at}"
            more = f"save(path), then Trainer.load(path, {name}=…), goes on"
            raise UsageError(f"{flag(name)}: {why}; {more}")
        self._refuse_if_closed()
        if self.stop.is_set():
            raise Interrupted
        result = self.do_iteration(self._backend)
        if (beyond := results.beyond_atoms(self.config, result)) and beyond not in self.warnings:
            self.warnings.append(beyond)
        if self._callback is not None and self._callback(result) == "stop":
            self._ended = True
        return result

    @ONE_BLAS_THREAD
    def do_iteration(self, backend: Backend) -> results.IterationResult:
        """Do one iteration, also beyond the end of the run, with episodes that this backend
        collects. Raises as `train` does; learner and totals are then as they were before."""
        learner, experiment, done = self.learner, self.config.experiment, self.totals
        found = iteration.collect_iteration(learner, backend, self.config, self.spec, done)
        # The only copy of the whole state in an iteration.
        before = {name: array.copy() for name, array in learner.state_dict().items()}
        self.before = results.RunState(done, before, networks_file=learner.networks_file)
        with stoppable(self.stop):
            try:
                result = iteration.learn_iteration(learner, backend, experiment, done, *found)
                end_if_stopped()
                self.totals = result.totals
            except BaseException:
                learner.load_state_dict(before, undo=True)
                self.totals = done
                raise
        return result

    def __iter__(self) -> Iterator[results.IterationResult]:
        """Do the remaining iterations, until the callback returns "stop" or `stop` is set."""
        self._ended, experiment = False, self.config.experiment
        while not (self._ended or self.stop.is_set() or results.ended(experiment, self.totals)):
            yield self.train()

    def evaluate(
        self,
        episodes: int = 100,
        explore: bool = False,
        seed: int = 0,
        record: str | Path | None = None,
    ) -> results.Evaluation:
        """Evaluate the policy in that many episodes, which it does not learn from.

        Args:
            explore: whether to sample actions as in training; see `Policy.act_all`.
            seed: decides the episodes: the same for every policy, and none of training.
            record: an .npz file that the episodes are written to, as demonstrations.

        Raises as `train` does, and UsageError for a file that cannot be written.
        """
        request = self.evaluation_request(episodes, explore, seed)
        collected = self._backend.collect(self.learner.snapshot(), request).episodes
        if record is not None:
            from flame_rl.learner.demonstrations.files import write_demonstrations

            write_demonstrations(Path(record), collected, self.spec)
        return results.evaluation_of(collected, request.agents, self.learner.rewards)

    def evaluation_request(self, episodes: int, explore: bool, seed: int) -> CollectRequest:
        """The request for an evaluation's episodes; see `evaluate`."""
        episodes, seed = converted("episodes", Count, episodes), converted("seed", Seed, seed)
        self._refuse_if_closed()
        version = self.learner.snapshot().version
        request = iteration.make_request(self.config, self.spec, 0, range(episodes), version)
        return replace(request, run_seed=seed, stream="evaluation", explore=explore)

    def reproduce(self) -> Episodes:
        """Collect only episode `config.output.reproduce` of the next iteration."""
        self._refuse_if_closed()
        snapshot = self.learner.collector_snapshot()
        request = iteration.training_request(self.config, self.spec, self.totals, snapshot.version)
        request = replace(request, indices=(self.config.output.reproduce,), steps=None)
        return self._backend.collect(snapshot, request).episodes

    def begin_episode(self) -> None:
        """Begin an episode of `compute_action`; see `Policy.begin`."""
        self._latest_policy().begin()

    def compute_action(
        self, observation: object, explore: bool = False, action_mask: object | None = None
    ) -> Action:
        """The latest policy's action for an observation; see `Policy.act_all`. A policy with a
        memory needs `begin_episode` after each update, too. Raises ValueError as that does."""
        return self._latest_policy().act(observation, explore, action_mask)

    def _latest_policy(self) -> Policy:
        snapshot = self.learner.snapshot()
        if self._policy is None or self._policy.updates != snapshot.version:
            self._policy = Policy(snapshot, self.spec, self._generator)
        return self._policy

    @property
    def replay(self) -> ReplayMemory | None:
        """The replay memory, whose episodes are in files of their own; None if there is none."""
        return self.learner.parts.get("replay")

    def save(self, path: str | Path) -> None:
        """Write a checkpoint that `load` reads, and beside it, in PATH.replay, replayed experience.
        Raises RunError if the disk refuses."""
        path = Path(path)
        with checkpoint.refused_by_the_disk(path):
            if self.replay is not None:
                self.replay.copy_to(folder.files_beside(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays, file = self.learner.state_dict(), self.learner.networks_file
            state = results.RunState(self.totals, arrays, networks_file=file)
            data = checkpoint.encode_checkpoint(state, None, self.spec, self.config)
            write_atomically(path, data)

    def listen(self, listener: Listener) -> None:
        """Let `listener` be told when a cluster gives no sign of life; otherwise nobody is."""
        self._workers.listener = listener

    def close(self) -> None:
        """Stop workers and threads, and close the learner. Twice, or in a fork, it does nothing."""
        self._closed = True
        if os.getpid() != self._process:
            return
        self._backend.close()
        self._closing.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise UsageError("this Trainer is closed; use it within its `with` block, or a new one")
        if os.getpid() != self._process:
            raise UsageError("this Trainer was made before a fork; make one here, or load its save")

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _register(make: Callable[[], gymnasium.Env], name: str) -> str:
    """Register a Python function that makes environments; returns their id, made from `name`."""

    # Gymnasium copies what it registers, but not a plain function and what that refers to.
    def entry_point(**keywords: Any) -> gymnasium.Env:
        return make(**keywords)

    stem = env_id = re.sub(r"[^\w.]+", "-", name).strip("-")
    for number in itertools.count(2):
        spec = EnvSpec(env_id, entry_point)
        if gymnasium.registry.setdefault(env_id, spec) is spec:  # unless another thread was first
            return env_id
        env_id = f"{stem}-{number}"


def _refuse_reports(settings: Mapping[str, Any]) -> None:
    """Raise UsageError for settings that only the command line carries out."""
    for name in _REPORTS:
        if settings.get(name, default := getattr(Output, name)) != default:
            raise UsageError(f"{name}: a Trainer prints nothing; train with main.py {flag(name)}")
