"""The same steps as in update_ours.py in JAX: an epoch of PPO is one compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.peers.sequences_jax import steps_of
from benchmarks.peers.work import HIDDEN, SEQUENCES, UPDATES, UpdateData, serve

Layers = list[tuple[jax.Array, jax.Array]]
Samples = dict[str, jax.Array]


def main() -> None:
    tasks = {task: epochs_of(size) for task, size in UPDATES.items()}
    tasks |= {task: steps_of(memory) for task, memory in SEQUENCES.items()}
    serve(tasks)


def epochs_of(size: int) -> Callable[[], int]:
    """See update_ours.py."""
    data, rng = UpdateData(size), np.random.default_rng(0)
    observation_dim, action_dim = data.observations.shape[1], data.actions.shape[1]
    networks = {
        "policy": new_layers(rng, (observation_dim, *HIDDEN, action_dim)),
        "log_std": jnp.zeros(action_dim),
        "value": new_layers(rng, (observation_dim, *HIDDEN, 1)),
    }
    samples = {
        "observations": jnp.asarray(data.observations),
        "actions": jnp.asarray(data.actions),
        "advantages": jnp.asarray(data.advantages),
        "targets": jnp.asarray(data.targets),
    }
    samples["log_probs"] = log_probs_of(networks, samples)
    # One for both networks, which is less work than one each.
    optimizer = optax.chain(
        optax.clip_by_global_norm(data.max_grad_norm), optax.adam(data.learning_rate)
    )

    def loss(networks: dict[str, Any], minibatch: Samples) -> jax.Array:
        advantages = minibatch["advantages"]
        ratio = jnp.exp(log_probs_of(networks, minibatch) - minibatch["log_probs"])
        clipped = jnp.clip(ratio, 1 - data.clip_range, 1 + data.clip_range)
        gain = jnp.minimum(ratio * advantages, clipped * advantages).mean()
        values = output_of(networks["value"], minibatch["observations"])[:, 0]
        return 0.5 * jnp.square(values - minibatch["targets"]).mean() - gain

    def step(state: tuple, minibatch: Samples) -> tuple[tuple, None]:
        networks, moments = state
        gradient = jax.grad(loss)(networks, minibatch)
        change, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(networks, change), moments), None

    @jax.jit
    def epoch(state: tuple, samples: Samples, order: jax.Array) -> tuple:
        minibatches = {
            name: column[order].reshape(data.minibatches, size, *column.shape[1:])
            for name, column in samples.items()
        }
        return jax.lax.scan(step, state, minibatches)[0]

    state = networks, optimizer.init(networks)

    def epochs() -> int:
        nonlocal state
        for _ in range(data.epochs):
            state = epoch(state, samples, rng.permutation(len(data.observations)))
        jax.block_until_ready(state)
        return data.epochs * data.minibatches

    return epochs


def new_layers(rng: np.random.Generator, sizes: tuple[int, ...]) -> Layers:
    """Dense layers with random weights."""
    weights = (rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in pairwise(sizes))
    return [
        (jnp.asarray(weight, jnp.float32), jnp.zeros(weight.shape[1], jnp.float32))
        for weight in weights
    ]


def output_of(layers: Layers, inputs: jax.Array) -> jax.Array:
    """Of dense layers with tanh between them."""
    *hidden, (weight, bias) = layers
    for each, shift in hidden:
        inputs = jnp.tanh(inputs @ each + shift)
    return inputs @ weight + bias


def log_probs_of(networks: dict[str, Any], samples: Samples) -> jax.Array:
    """Of the samples' actions, but for a constant."""
    means, log_std = output_of(networks["policy"], samples["observations"]), networks["log_std"]
    scaled = (samples["actions"] - means) * jnp.exp(-log_std)
    return -0.5 * jnp.square(scaled).sum(1) - log_std.sum()


if __name__ == "__main__":
    main()
