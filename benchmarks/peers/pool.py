"""EnvPool with this package's policy, which records nothing. Argument: `ENV_ID`."""

from __future__ import annotations

import sys
from itertools import pairwise

import envpool
import numpy as np

from benchmarks.peers.work import HIDDEN, serve
from flame_rl.nets.acting import ActingPolicy
from flame_rl.wire.messages import Layer, PolicySnapshot

ENVS = 64
THREADS = 2
STEPS = 500


def main(env_id: str) -> None:
    envs = envpool.make_gymnasium(env_id, num_envs=ENVS, num_threads=THREADS, seed=0)
    observations, _ = envs.reset()
    space = envs.action_space
    policy = ActingPolicy(random_policy(observations.shape[1], space.shape[-1]))
    rng = np.random.default_rng(0)

    def collect() -> int:
        nonlocal observations
        for _ in range(STEPS):
            noise = policy.draw_noise(rng, ENVS)
            actions = policy.act(observations.astype(np.float32), noise)
            clipped = np.clip(actions, space.low, space.high).astype(space.dtype)
            observations, *_ = envs.step(clipped)
        return ENVS * STEPS

    serve({"collect": collect})


def random_policy(observation_dim: int, action_dim: int) -> PolicySnapshot:
    rng = np.random.default_rng(0)
    sizes = (observation_dim, *HIDDEN, action_dim)
    layers = [
        Layer(
            "normalize",
            {
                "mean": np.zeros(observation_dim, np.float32),
                "std": np.ones(observation_dim, np.float32),
            },
        )
    ]
    for inputs, outputs in pairwise(sizes):
        weight = 0.1 * rng.standard_normal((inputs, outputs)).astype(np.float32)
        layers.append(Layer("dense", {"weight": weight, "bias": np.zeros(outputs, np.float32)}))
        layers.append(Layer("tanh", {}))
    head = Layer("gaussian", {"log_std": np.full(action_dim, -0.5, np.float32)})
    return PolicySnapshot(version=0, layers=tuple(layers[:-1]), head=head)


if __name__ == "__main__":
    main(sys.argv[1])
