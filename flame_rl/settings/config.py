"""The configuration of a run: the command line, the Python API and config.json in one dataclass.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flame_rl.system.errors import UsageError

if TYPE_CHECKING:
    import gymnasium

    Environment = str | Callable[[], gymnasium.Env]
else:
    # All that a command line can say.
    Environment = str

# Before the name of a function, in config.json.
CALLABLE = "callable "

_TINY = sys.float_info.min
_HUGE = sys.float_info.max

# Of the numbers that may be left open: least, greatest, and how an error says that.
_RANGES = (
    ("steps_per_iter", 1, 1 << 40, "at least 1"),
    *(
        (name, _TINY, _HUGE, "above 0, and finite")
        for name in ("learning_rate", "value_learning_rate")
    ),
    *((name, 0, 1, "from 0 to 1") for name in ("gamma", "gae_lambda")),
    *((name, 1, 1 << 40, "at least 1") for name in ("epochs", "value_epochs")),
    ("minibatches", 1, 1 << 40, "at least 1"),
    *((name, _TINY, _HUGE, "above 0") for name in ("clip_range", "max_kl", "max_grad_norm")),
    ("entropy_coefficient", 0, _HUGE, "0 or more"),
    ("initial_log_std", -20, 5, "from -20 to 5"),
)


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy: a learner here, episodes collected in parallel elsewhere.

    Episodes are collected on a Flame cluster where one is configured (FLAME_ENDPOINT, or
    ~/.flame/flame.yaml), and otherwise on the cores of this machine.
    """

    env: Environment = "cartpole"
    """Environment: cartpole, halfcheetah, hopper, walker2d, ant, any Gymnasium id (Pendulum-v1), or
    your own as module:EnvId; in Python also a function that makes one."""

    algorithm: Literal["reinforce", "a2c", "ppo"] = "reinforce"
    """What improves the policy."""

    local: bool = False
    """Collect on this machine even where a Flame cluster is configured."""

    iterations: int = 100
    """Training iterations: updates of the policy."""

    episodes_per_iter: int = 100
    """Complete episodes collected for each iteration."""

    evaluate_every: int | None = None
    """Evaluate the policy after every so many iterations, in episodes of their own, without
    exploring; best.ckpt is then the best so far by that, and not by the training reward."""

    evaluate_episodes: int = 20
    """How many episodes an evaluation has."""

    verbose: bool = False
    """Print more of every iteration: its spread, the loss's parts, speed and seconds by phase."""

    tensorboard: bool = False
    """Write all of that for TensorBoard, too, into the run folder."""

    plot: bool = False
    """Draw curve.png at the end, and show it where there is a display."""

    seed: int = 0
    """Seed of everything random. The same seed gives the same metrics.csv."""

    workers: int | None = None
    """Local worker processes; default: all cores; 0: collect in this process, so that a breakpoint
    in the collector works."""

    executors: int | None = None
    """Executors of a Flame cluster; default: one for every core that it offers. So many share its
    memory instead: more than cores are for simulators that wait and do not compute."""

    output: Path | None = None
    """Run folder; default: runs/<env>-<algorithm>-<time>."""

    steps_per_iter: int | None = None
    """Instead of a fixed number of episodes, as many as are expected to have so many steps
    together, judged by the iteration before; the first one has 8."""

    learning_rate: float | None = None
    """Step size of the policy's Adam. Where no default is shown, here and below, it depends on
    environment and algorithm: flame_rl/settings/presets.py."""

    value_learning_rate: float | None = None
    """Step size of the value network's Adam."""

    learning_rate_decay: bool | None = None
    """Let both fall linearly to 0 at the last iteration."""

    gamma: float = 0.99
    """Discount of future rewards per step, 0 to 1. At 1 a return is the plain sum to the episode's
    end, and, without a value network, a time limit counts as that end."""

    gae_lambda: float | None = None
    """Of a2c and ppo: from 0 (advantages from one step and the value after it) to 1 (from whole
    episodes)."""

    baseline: Literal["none", "leave-one-out", "value"] | None = None
    """Of reinforce: what returns are compared with: nothing, the other episodes at the same time
    step, or a value network."""

    normalize_observations: bool | None = None
    """Bring observations to mean 0 and standard deviation 1, by all that were seen so far."""

    epochs: int | None = None
    """Of ppo: passes over each batch."""

    value_epochs: int | None = None
    """Of reinforce and a2c: passes of the value network over each batch."""

    minibatches: int | None = None
    """Steps of Adam in each pass over a batch, unless minibatches of 64 env steps make fewer; 1:
    the whole batch at once."""

    clip_range: float | None = None
    """Of ppo: how far from 1 the ratio of probabilities may go."""

    recompute_advantages: bool | None = None
    """Of ppo: recompute them before every pass."""

    max_kl: float | None = None
    """How far, in nats, an update may take the policy from the one that collected; a pass ends
    there, and what goes further is taken back."""

    entropy_coefficient: float | None = None
    """Weight of the policy's entropy in the objective; above 0 it keeps exploring longer."""

    max_grad_norm: float | None = None
    """Gradients of a greater norm are scaled down to it."""

    initial_log_std: float | None = None
    """Logarithm of the standard deviation with which continuous actions begin to explore."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of policy and value network alike."""

    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Nonlinearity between the layers."""

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

        named = isinstance(self.env, str) and bool(self.env.strip())
        check("env", named or callable(self.env), "a name or Gymnasium id, or in Python a function")
        check("iterations", self.iterations >= 1, "at least 1")
        check("episodes_per_iter", self.episodes_per_iter >= 1, "at least 1")
        check("seed", 0 <= self.seed < 1 << 63, "an integer from 0 to 2**63 - 1")
        check("workers", self.workers is None or self.workers >= 0, "0 or more")
        executors = self.executors
        check("executors", executors is None or executors >= 1, "at least 1")
        check("hidden_sizes", all(size >= 1 for size in self.hidden_sizes), "widths of at least 1")
        for name, low, high, expected in _RANGES:
            value = getattr(self, name)
            check(name, value is None or low <= value <= high, expected)
        limit = self.max_episode_steps
        check("max_episode_steps", limit is None or limit >= 1, "at least 1")
        timeout = self.task_timeout
        check("task_timeout", timeout is None or 0 < timeout <= 1e6, "above 0, up to 1000000")
        check("worker_episodes", self.worker_episodes >= 1, "at least 1")
        check("worker_megabytes", self.worker_megabytes >= 1, "at least 1")
        every = self.evaluate_every
        check("evaluate_every", every is None or every >= 1, "at least 1")
        check("evaluate_episodes", self.evaluate_episodes >= 1, "at least 1")
        check("cluster_patience", self.cluster_patience > 0, "above 0")
        check("checkpoint_every", self.checkpoint_every >= 1, "at least 1")
        check("keep_checkpoints", self.keep_checkpoints >= 1, "at least 1")
        episode = self.reproduce
        # How many there are is known only once the run is read: run_folder.py looks.
        within = episode is None or (self.resume and episode >= 0)
        check("reproduce", bool(within), "with --resume, an episode of an iteration")

    @property
    def env_name(self) -> str:
        """`env` as text; of a function "callable " and its qualified name."""
        if isinstance(self.env, str):
            return self.env
        # An object that can be called has no name of its own.
        named = self.env if hasattr(self.env, "__qualname__") else type(self.env)
        return f"{CALLABLE}{named.__module__}.{named.__qualname__}"

    def __str__(self) -> str:
        """A table of all fields; what the presets decide is shown as they do."""
        from flame_rl.settings.presets import with_presets

        filled = with_presets(self, self.env_name)
        rows = []
        for field in dataclasses.fields(self):
            given, value = getattr(self, field.name), getattr(filled, field.name)
            if field.name == "env":
                given = value = self.env_name
            note = "  preset" if given is None and value is not None else ""
            text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            rows.append(f"{field.name:<24}{text}{note}")
        rows.append("\npreset: of the algorithm; settings/presets.py overrides some by environment")
        return "\n".join(rows)

    def to_json(self) -> str:
        """For config.json."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps(values | {"env": self.env_name}, indent=2, default=str) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """The inverse of `to_json`. Raises UsageError if the text is no configuration."""
        try:
            return cls.from_values(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"config.json: not the configuration of a run: {error}") from error

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> TrainConfig:
        """As `from_json`, from what its JSON says."""
        try:
            values = dict(values)
            values["hidden_sizes"] = tuple(values["hidden_sizes"])
            for name in ("output", "resume"):
                values[name] = None if values[name] is None else Path(values[name])
            return cls(**values)
        except (UsageError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"config.json: not the configuration of a run: {error}") from error
