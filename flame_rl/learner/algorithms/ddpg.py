"""Deep deterministic policy gradient (Lillicrap et al. 2016, "Continuous Control with Deep
Reinforcement Learning", algorithm 1).

    Q(s_t, a_t) -> r_t + gamma Q'(s_{t+1}, mu'(s_{t+1}))
    maximise  mean Q(s_t, mu(s_t))

Q' and mu' are target networks, which follow slowly; noise explores, independent from step to step
or by an Ornstein-Uhlenbeck process. TD3 came later, and this is TD3 without what it added.
"""

import numpy as np

from flame_rl.learner.algorithms.td3 import TD3
from flame_rl.settings.algorithms import DDPGSettings


class DDPG(TD3):
    """TD3 with one critic, no delay and no smoothing."""

    critics = policy_delay = 1

    def exploration(self, env_steps: int) -> dict[str, float]:
        """As TD3's; after the warm-up, perhaps the noise keeps most of the step before."""
        settings: DDPGSettings = self._settings
        numbers = super().exploration(env_steps)
        if settings.noise_process == "ornstein-uhlenbeck" and env_steps >= settings.warm_up_steps:
            numbers["theta"] = settings.noise_theta
        return numbers

    def smoothed(self, actions: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return actions
