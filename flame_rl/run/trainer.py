"""Training, evaluating, acting: all is constructed here, for Python and the command line alike.

Imports nothing heavy: torch is loaded when a `Trainer` is made.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flame_rl.backends.select import is_distributed, make_backend
from flame_rl.run.agent import Agent
from flame_rl.run.evaluation import Evaluation, evaluate
from flame_rl.run.folder import differences
from flame_rl.run.loop import IterationResult, Learner, Totals, make_request, reproduce, train
from flame_rl.run.own_environment import register, unregister
from flame_rl.settings.config import CALLABLE, TrainConfig
from flame_rl.settings.presets import with_presets
from flame_rl.system.errors import Interrupted, UsageError
from flame_rl.system.signals import unless_stopped
from flame_rl.wire.messages import CollectRequest, Environment, Episode

if TYPE_CHECKING:
    from flame_rl.run.checkpoint import Checkpoint

# Gets every result, as soon as it is there; may end the iteration over a Trainer.
Callback = Callable[[IterationResult], Literal["stop"] | None]


class Trainer:
    """A policy that learns; iterating over it yields the result of one iteration after another.

    It writes no files but by `save`: run folder, plot and TensorBoard are the command line's.

        with Trainer(TrainConfig(env="cartpole", algorithm="ppo")) as trainer:
            for result in trainer:
                print(result.iteration, result.reward_mean)

    Attributes:
        config: as given, with everything filled in that it left to the presets.
        spec: what is known of the environment.
        note: why no fast simulator plays it, if there is one; or "".
        distributed: whether episodes are collected on a Flame cluster.
        learner: what is improved.
        totals: what is done so far.
        warnings: for the user, of a run that was taken up again.
    """

    def __init__(
        self,
        config: TrainConfig,
        callback: Callback | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Start the workers or reach the cluster, and make the networks.

        Args:
            config: what to train. Run folders are the command line's: `resume` is without effect
                until `take_up_run`.
            callback: gets every result; where it returns "stop", iterating ends.
            stop: may be set from elsewhere, to end whatever is going on with `Interrupted`.

        Raises:
            UsageError: something in the configuration cannot be.
            RunError: the cluster cannot be used.
        """
        self._callback = callback
        self._stop = threading.Event() if stop is None else stop
        self._ended = False
        self._registered: str | None = None
        self._agent: Agent | None = None
        self.distributed = is_distributed(config)
        if config.env_name.startswith(CALLABLE) and isinstance(config.env, str):
            raise UsageError(
                f"--env: the function {config.env_name.removeprefix(CALLABLE)} made this run's "
                "environments; only Python can pass it: Trainer.load(path, env=…)"
            )
        # Before torch is imported: workers and executors start in the meantime.
        self._backend = make_backend(config, self._stop)
        try:
            # It takes seconds, in which the user is heard.
            unless_stopped(self._stop, lambda: importlib.import_module("model"))
            self._make_learner(config)
        except BaseException:
            self.close()
            raise

    def _make_learner(self, config: TrainConfig) -> None:
        import model
        from flame_rl.learner.learner import Learner as TorchLearner

        if isinstance(config.env, str):
            env_id = model.ENVIRONMENTS.get(config.env.lower(), config.env)
        else:
            name = config.env_name.removeprefix(CALLABLE)
            env_id = self._registered = register(config.env, name)
        environment = Environment(env_id, config.max_episode_steps, config.simulator)
        spec = self._backend.describe(environment)
        # Which simulator plays is no matter of the environment.
        self.spec, self.note = replace(spec, note=""), spec.note
        self.config = with_presets(config, env_id)
        with one_thread():
            networks = model.make_networks(self.spec, self.config)
        self.learner: Learner = TorchLearner(self.config, *networks)
        self.totals, self.warnings = Totals(), []
        # Of actions that `compute_action` samples; episodes have generators of their own.
        self._generator = np.random.default_rng(config.seed)

    @classmethod
    def load(
        cls,
        path: str | Path,
        best: bool = False,
        callback: Callback | None = None,
        stop: threading.Event | None = None,
        **changes: Any,
    ) -> Trainer:
        """Take up what `save` wrote, or the newest checkpoint of a run folder.

        Args:
            path: a checkpoint file or a run folder.
            best: of a run folder, its best checkpoint.
            callback, stop: as in `Trainer`.
            changes: fields of `TrainConfig` that change no result, such as `iterations` and
                `workers`; and `env`, where a function made the environments.

        Raises:
            UsageError: there is no sound checkpoint, it does not fit the networks in model.py, or a
                change would make it another run.
        """
        stop = threading.Event() if stop is None else stop
        saved_module = unless_stopped(stop, lambda: importlib.import_module("flame_rl.run.saved"))
        checkpoint, warnings = saved_module.find_checkpoint(Path(path), best)
        saved = TrainConfig.from_values(checkpoint.config)
        if saved.env_name.startswith(CALLABLE) and "env" in changes:
            saved = replace(saved, env=changes["env"])
        config = replace(saved, **changes)
        if different := differences(saved, config):
            raise UsageError(f"these changes would make it another run: {different}")
        trainer = cls(replace(config, resume=None, reproduce=None), callback, stop)
        try:
            trainer._take_up(checkpoint, Path(path))
        except BaseException:
            trainer.close()
            raise
        trainer.warnings = warnings
        return trainer

    def take_up_run(self) -> None:
        """Go on where the run in the folder `config.resume` was, if there is one.

        Raises:
            UsageError: its newest sound checkpoint does not fit the networks in model.py.
        """
        from flame_rl.run.checkpoint import restore

        self.totals, self.warnings = restore(self.config, self.learner)

    def _take_up(self, checkpoint: Checkpoint, path: Path) -> None:
        from flame_rl.run.checkpoint import load_state

        then, now = (replace(spec, env_id="") for spec in (checkpoint.spec, self.spec))
        if then != now:
            raise UsageError(f"--env: the environment of {path} was another one: {then}, now {now}")
        load_state(self.learner, checkpoint, path)
        self.totals = checkpoint.totals

    def train(self) -> IterationResult:
        """One iteration: collect, update, and evaluate where that is due.

        Raises:
            UsageError: all iterations are done, or the environment is at fault.
            RunError: workers kept failing, or the update became NaN. The learner is as it was.
            Interrupted: `stop` was set.
        """
        if self.totals.iterations >= self.config.iterations:
            raise UsageError(
                f"--iterations: all {self.config.iterations} are done; save(path), then "
                "Trainer.load(path, iterations=…), goes on"
            )
        with one_thread():
            # Begun anew each time, so that an iteration which failed can be tried again.
            loop = train(
                self.config, self.spec, self.learner, self._backend, self._stop, self.totals
            )
            result = next(loop, None)
        if result is None:
            raise Interrupted
        self.totals = result.totals
        if self._callback is not None and self._callback(result) == "stop":
            self._ended = True
        return result

    def __iter__(self) -> Iterator[IterationResult]:
        """The iterations that are left; fewer, once the callback says "stop" or `stop` is set."""
        self._ended = False
        while self.totals.iterations < self.config.iterations:
            if self._ended or self._stop.is_set():
                return
            yield self.train()

    def evaluate(self, episodes: int = 100, explore: bool = False, seed: int = 0) -> Evaluation:
        """Play episodes that nothing is learned from.

        Args:
            episodes: how many.
            explore: whether to sample actions as in training; otherwise each is the policy's mean,
                or its likeliest.
            seed: of the episodes, which are the same for every policy; they meet none that were
                used in training.

        Raises:
            UsageError, RunError, Interrupted: as in `train`.
        """
        request = self.evaluation_request(episodes, explore, seed)
        return evaluate(self._backend, self.learner.snapshot(), request)

    def evaluation_request(self, episodes: int, explore: bool, seed: int) -> CollectRequest:
        """Which episodes an evaluation has; see `evaluate`."""
        if episodes < 1:
            raise UsageError(f"--episodes: at least 1, not {episodes}")
        indices, snapshot = tuple(range(episodes)), self.learner.snapshot()
        request = make_request(self.config, self.spec, 0, indices, snapshot)
        return replace(request, run_seed=seed, stream="evaluation", explore=explore)

    def reproduce(self) -> Episode:
        """Collect only the episode `config.reproduce` of the next iteration."""
        return reproduce(self.config, self.spec, self.learner, self._backend, self.totals)

    def compute_action(self, observation: object, explore: bool = False) -> int | np.ndarray:
        """What the policy does: an action that the environment takes.

        Args:
            observation: as the environment returns it.
            explore: whether to sample; otherwise the policy's mean, or its likeliest action.

        Raises:
            ValueError: the observation is not of the environment's space, or is not finite.
        """
        snapshot = self.learner.snapshot()
        if self._agent is None or self._agent.version != snapshot.version:
            self._agent = Agent(snapshot, self.spec)
        return self._agent.act(observation, self._generator if explore else None)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, which `load` takes up. Raises RunError if the disk refuses."""
        from flame_rl.run.checkpoint import encode, refused_by_the_disk, save

        state = self.learner.state_dict()
        with refused_by_the_disk(Path(path)):
            save(Path(path), encode(self.totals, None, state, self.spec, self.config))

    def close(self) -> None:
        """Leave nothing behind: no process, no thread. May be called twice."""
        self._backend.close()
        if self._registered is not None:
            unregister(self._registered)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums that torch divides among cores would make bits depend on how many there are; the learner
    uses them all in its own way (learner/slices.py)."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
