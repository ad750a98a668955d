"""`Policy`: a saved policy that acts, without the environment, workers or a Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flame_rl.run.agent import Agent
from flame_rl.run.folder import files_of
from flame_rl.run.resume import find_checkpoint, load_state
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot


class Policy:
    """Chooses actions as the policy of a run does, for observations from anywhere.

        policy = Policy.load("runs/cartpole-ppo-20261121-115727")
        action = policy.act(observation)
        actions = policy.act_all(observations)

    Attributes:
        spec: the description of the environment that it was trained in, with its spaces.
        updates: the number of updates that made it.
    """

    def __init__(self, snapshot: PolicySnapshot, spec: EnvironmentSpec, seed: int = 0) -> None:
        """`seed` decides the actions that are sampled."""
        self.spec, self.updates = spec, snapshot.version
        self._agent = Agent(snapshot, spec)
        self._generator = np.random.default_rng(seed)

    @classmethod
    def load(cls, path: str | Path, best: bool = False, seed: int = 0) -> Policy:
        """The policy of the newest checkpoint of a run folder, or of a checkpoint file.

        Args:
            path: a run folder, or a file that `Trainer.save` or a run wrote.
            best: use the run folder's best checkpoint, not its newest.
            seed: decides the actions that are sampled.

        Raises:
            UsageError: there is no sound checkpoint, or it does not fit the networks in model.py.
        """
        from flame_rl.learner.learner import make_learner
        from flame_rl.run.trainer import own_networks

        path = Path(path)
        checkpoint, _ = find_checkpoint(path, best)
        # Of the run's own modules none is needed to act.
        config = TrainConfig.from_data(checkpoint.config).changed(device="cpu", reward=None)
        with own_networks():
            learner = make_learner(config, checkpoint.spec)
            if (files := learner.algorithm.files) is not None:
                files.read_from(files_of(path))
            load_state(learner, checkpoint, path)
        return cls(learner.snapshot(), checkpoint.spec, seed)

    def begin(self, episodes: int = 1) -> None:
        """Say that the next observations are the first of these episodes, side by side. A policy
        with a memory must know; for another, only noise that depends on the step before begins
        anew."""
        self._agent.begin(episodes)

    def act(self, observation: object, explore: bool = False) -> np.integer | np.ndarray:
        """The action for an observation, in the form that the environment takes.

        Args:
            observation: as the environment returns it.
            explore: whether to sample; otherwise the policy's mean, or the choice that is likeliest
                or worth most.

        Raises:
            ValueError: the observation is not of the environment's space, or is not finite; or the
                policy has a memory, and `begin` was not called.
        """
        return self.act_all([observation], explore)[0]

    def act_all(
        self, observations: Sequence[object], explore: bool = False
    ) -> Sequence[np.integer | np.ndarray]:
        """An action for each observation: the same, to the bit, as for that observation alone. With
        a memory, one observation of each episode that has begun. See `act`."""
        return self._agent.act_all(observations, self._generator if explore else None)
