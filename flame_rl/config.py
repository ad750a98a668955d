"""The configuration of a run: the command line, the Python API and config.json in one dataclass.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flame_rl.errors import UsageError


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy with REINFORCE: a learner here, episodes collected in parallel elsewhere.

    Episodes are collected on a Flame cluster where one is configured (FLAME_ENDPOINT, or
    ~/.flame/flame.yaml), and otherwise on the cores of this machine.
    """

    env: str = "cartpole"
    """Environment: cartpole, halfcheetah, hopper, walker2d, ant, any Gymnasium id (Pendulum-v1), or
    your own as module:EnvId."""

    local: bool = False
    """Collect on this machine even where a Flame cluster is configured."""

    iterations: int = 100
    """Training iterations: updates of the policy."""

    episodes_per_iter: int = 100
    """Complete episodes collected for each iteration."""

    plot: bool = False
    """Draw curve.png at the end, and show it where there is a display."""

    seed: int = 0
    """Seed of everything random. The same seed gives the same metrics.csv."""

    workers: int | None = None
    """Local worker processes; default: all cores; 0: collect in this process, so that a breakpoint
    in the collector works."""

    output: Path | None = None
    """Run folder; default: runs/<env>-<algorithm>-<time>."""

    learning_rate: float = 1e-2
    """Step size of Adam."""

    gamma: float = 0.99
    """Discount of future rewards per step, 0 to 1. At 1 a return is the plain sum to the episode's
    end, and a time limit counts as that end."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the policy's hidden layers."""

    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Nonlinearity between the layers."""

    initial_log_std: float = -0.5
    """Logarithm of the standard deviation with which continuous actions begin to explore."""

    entropy_coefficient: float = 0.0
    """Weight of the policy's entropy in the objective; above 0 it keeps exploring longer."""

    max_grad_norm: float = 1.0
    """Gradients of a greater norm are scaled down to it."""

    max_episode_steps: int | None = None
    """A time limit in steps that replaces the environment's own."""

    simulator: Literal["auto", "plain", "fast"] = "auto"
    """What plays the environment. plain: Gymnasium; fast: a twin that gives the same bits sooner,
    for cartpole, halfcheetah, hopper, walker2d and ant; auto: fast where that is possible."""

    task_timeout: float | None = None
    """Seconds after which a worker that gives no answer is killed and its episodes are collected
    again; default: ten times the longest task so far, but at least a minute; 600 at first."""

    worker_episodes: int = 100_000
    """A worker process is replaced after so many episodes."""

    worker_megabytes: int = 4096
    """A worker process that has taken more memory than this is replaced."""

    cluster_patience: float = 120.0
    """Seconds without any result after which a cluster that fails to answer ends the run."""

    checkpoint_every: int = 10
    """Iterations between two checkpoints; the last state is saved in any case."""

    keep_checkpoints: int = 3
    """How many of the latest checkpoints stay, besides the best."""

    resume: Path | None = None
    """Go on with the run in this folder. It needs no other flag."""

    reproduce: int | None = None
    """With --resume: collect only this episode of the next iteration, in this process."""

    def __post_init__(self) -> None:
        def check(name: str, good: bool, expected: str) -> None:
            if not good:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag}: {expected}, not {getattr(self, name)}")

        check("env", bool(self.env.strip()), "a name or Gymnasium id")
        check("iterations", self.iterations >= 1, "at least 1")
        check("episodes_per_iter", self.episodes_per_iter >= 1, "at least 1")
        check("seed", 0 <= self.seed < 1 << 63, "an integer from 0 to 2**63 - 1")
        check("workers", self.workers is None or self.workers >= 0, "0 or more")
        check("learning_rate", 0 < self.learning_rate < float("inf"), "above 0, and finite")
        check("gamma", 0 <= self.gamma <= 1, "from 0 to 1")
        check("hidden_sizes", all(size >= 1 for size in self.hidden_sizes), "widths of at least 1")
        check("initial_log_std", -20 <= self.initial_log_std <= 5, "from -20 to 5")
        check("entropy_coefficient", 0 <= self.entropy_coefficient < float("inf"), "0 or more")
        check("max_grad_norm", self.max_grad_norm > 0, "above 0")
        limit = self.max_episode_steps
        check("max_episode_steps", limit is None or limit >= 1, "at least 1")
        timeout = self.task_timeout
        check("task_timeout", timeout is None or 0 < timeout <= 1e6, "above 0, up to 1000000")
        check("worker_episodes", self.worker_episodes >= 1, "at least 1")
        check("worker_megabytes", self.worker_megabytes >= 1, "at least 1")
        check("cluster_patience", self.cluster_patience > 0, "above 0")
        check("checkpoint_every", self.checkpoint_every >= 1, "at least 1")
        check("keep_checkpoints", self.keep_checkpoints >= 1, "at least 1")
        episode = self.reproduce
        # How many there are is known only once the run is read: run_folder.py looks.
        within = episode is None or (self.resume and episode >= 0)
        check("reproduce", bool(within), "with --resume, an episode of an iteration")

    def to_json(self) -> str:
        """For config.json."""
        return json.dumps(dataclasses.asdict(self), indent=2, default=str) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """The inverse of `to_json`. Raises UsageError if the text is no configuration."""
        try:
            values = json.loads(text)
            values["hidden_sizes"] = tuple(values["hidden_sizes"])
            for name in ("output", "resume"):
                values[name] = None if values[name] is None else Path(values[name])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"config.json: not the configuration of a run: {error}") from error
