"""For type checkers and editors: the keywords of `TrainConfig`, of all algorithms together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from flame_rl.settings.experiment import EnvironmentSource


class Settings(TypedDict, total=False):
    """The fields of the dataclasses of settings, which say what they mean (docs/flags.md)."""

    # Experiment
    env_kwargs: Mapping[str, Any] | Sequence[str]
    wrapper: Sequence[str]
    seed: int
    from_: str | Path | None
    from_digest: str | None
    iterations: int
    env_steps: int | None
    stop_at: float | None
    episodes_per_iter: int
    steps_per_iter: int | None
    fragment_steps: int | None
    max_episode_steps: int | None
    observe: Sequence[str]
    policy_observations: Sequence[str]
    agent_number: bool
    action_mask: bool
    gamma: float
    reward_parts: Sequence[str]
    outcomes: Sequence[str]
    reward_weights: Sequence[float]
    reward: str | None
    model: str | Path | None
    hidden_sizes: Sequence[int]
    activation: Literal["tanh", "relu", "silu"]
    frame_stack: int
    memory: Literal["none", "gru", "lstm"]
    memory_size: int
    evaluate_every: int | None
    evaluate_episodes: int
    demonstrations: str | None
    demonstrations_digest: str | None
    # Algorithms
    shared_torso: bool
    learning_rate: float
    learning_rate_decay: bool
    value_learning_rate: float
    entropy_coefficient: float
    max_grad_norm: float
    normalize_observations: bool
    initial_log_std: float
    clone_epochs: int
    clone_batch_size: int
    minibatches: int
    max_kl: float
    q_lambda: float
    value_weight: float
    policy_loss: str | None
    auxiliary: Sequence[str]
    auxiliary_weights: Sequence[float]
    baseline: Literal["none", "leave-one-out", "value"]
    value_epochs: int
    overlap: bool
    gae_lambda: float
    epochs: int
    clip_range: float
    recompute_advantages: bool
    capacity: int
    with_replay: bool
    warm_up_steps: int
    batch_size: int
    updates_per_step: float
    demonstration_share: float
    hindsight: Literal["none", "future", "final"]
    hindsight_share: float
    prioritized: bool
    priority_alpha: float
    priority_beta: float
    epsilon_start: float
    epsilon_end: float
    epsilon_steps: int
    tau: float
    target_period: int
    epsilon_repeat: float
    n_step: int
    double: bool
    dueling: bool
    distribution: Literal["none", "c51", "quantiles"]
    atoms: int
    lowest_return: float
    highest_return: float
    rainbow: bool
    expected: bool
    sequence_length: int
    burn_in: int
    trace_lambda: float
    reward_scale: float
    layer_norm: bool
    noise: float
    noise_process: Literal["gaussian", "ornstein-uhlenbeck"]
    noise_theta: float
    policy_delay: int
    target_noise: float
    target_noise_clip: float
    average_critics: bool
    target_entropy: float
    initial_temperature: float
    initial_std: float
    policy: Literal["gaussian", "squashed", "deterministic"]
    # Execution
    device: Literal["auto", "cpu", "cuda", "gpu"]
    local: bool
    workers: int | None
    executors: int | None
    workers_per_executor: int
    executor_packages: Literal["install", "image"]
    simulator: Literal["auto", "plain", "fast"]
    strict: bool
    slots: int | None
    task_timeout: float | None
    worker_episodes: int
    worker_megabytes: int
    cluster_patience: float
    # Output
    output: str | Path | None
    resume: str | Path | None
    trust: bool
    seeds: Sequence[int]
    verbose: bool
    tensorboard: bool
    track: Literal["wandb", "mlflow", "trackio"] | None
    plot: bool
    checkpoint_every: int
    keep_checkpoints: int
    reproduce: int | None


class Changes(Settings, total=False):
    """What `TrainConfig.changed` takes."""

    env: EnvironmentSource
