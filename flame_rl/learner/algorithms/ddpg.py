"""Deep deterministic policy gradient (Lillicrap et al. 2016, "Continuous Control with Deep
Reinforcement Learning", algorithm 1).

    Q(s_t, a_t) -> r_t + gamma Q'(s_{t+1}, mu'(s_{t+1}))
    maximise  mean Q(s_t, mu(s_t))

Q' and mu' are target networks, which follow slowly; noise explores, independent from step to step
or by an Ornstein-Uhlenbeck process. TD3 came later, and this is TD3 without what it added.
"""

from flame_rl.learner.algorithms.td3 import TD3, Variant
from flame_rl.learner.training.trained import Trainable
from flame_rl.settings.algorithms import DDPGSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec


def ddpg(config: TrainConfig, spec: EnvironmentSpec, trainable: Trainable) -> TD3:
    """The algorithm with new networks: TD3 with one critic, no delay and no smoothing."""
    settings: DDPGSettings = config.algorithm
    theta = settings.noise_theta if settings.noise_process == "ornstein-uhlenbeck" else 1.0
    return TD3(config, spec, trainable, Variant(1, 1, smoothing=None, theta=theta))
