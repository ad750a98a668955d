"""The same gradient steps as in sequences_ours.py in JAX: each is compiled as a whole. Imported by
update_jax.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.peers.work import HIDDEN, SequenceData

Network = dict[str, Any]


def steps_of(memory: str) -> Callable[[], int]:
    """See sequences_ours.py."""
    data, rng = SequenceData(), np.random.default_rng(0)
    width, gates = data.memory, {"gru": 3, "lstm": 4}[memory]
    sizes = (data.observations.shape[2], *HIDDEN)
    online = {
        "hidden": [dense(rng, *shape) for shape in pairwise(sizes)],
        "input": dense(rng, HIDDEN[-1], gates * width),
        "state": dense(rng, width, gates * width),
        "output": dense(rng, width, 2),
    }
    observations = jnp.asarray(data.observations.swapaxes(0, 1))
    actions, rewards, discounts = (
        jnp.asarray(each.T) for each in (data.actions, data.rewards, data.discounts)
    )
    unroll = {"gru": gru, "lstm": lstm}[memory]
    optimizer = optax.chain(
        optax.clip_by_global_norm(data.max_grad_norm), optax.adam(data.learning_rate)
    )

    def values(network: Network) -> jax.Array:
        x = observations
        for weight, bias in network["hidden"]:
            x = jnp.tanh(x @ weight + bias)
        weight, bias = network["input"]
        weight_out, bias_out = network["output"]
        return unroll(network["state"], x @ weight + bias) @ weight_out + bias_out

    def loss(network: Network, target: Network) -> jax.Array:
        now, later = values(network), values(target)
        best = jax.lax.stop_gradient(now[1:]).argmax(-1)
        goals = rewards + discounts * chosen(later[1:], best)
        return optax.huber_loss(chosen(now[:-1], actions), goals).mean()

    @jax.jit
    def step(online: Network, target: Network, moments: Any) -> tuple:
        gradient = jax.grad(loss)(online, target)
        change, moments = optimizer.update(gradient, moments)
        online = optax.apply_updates(online, change)
        return online, optax.incremental_update(online, target, data.tau), moments

    state = online, online, optimizer.init(online)

    def steps() -> int:
        nonlocal state
        for _ in range(data.repeats):
            state = step(*state)
        jax.block_until_ready(state)
        return data.repeats

    return steps


def dense(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[jax.Array, jax.Array]:
    """Weight and bias of a layer."""
    weight = rng.standard_normal((inputs, outputs), np.float32) / np.sqrt(inputs)
    return jnp.asarray(weight, jnp.float32), jnp.zeros(outputs)


def gru(layer: tuple[jax.Array, jax.Array], given: jax.Array) -> jax.Array:
    """The states after each step, given what the inputs contribute, [L + 1, B, 3 units]."""
    weight, bias = layer

    def advance(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        (reset, keep, new), (x_reset, x_keep, x_new) = (
            jnp.split(each, 3, axis=-1) for each in (state @ weight + bias, x)
        )
        keep = jax.nn.sigmoid(x_keep + keep)
        new = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + reset) * new)
        state = new + keep * (state - new)
        return state, state

    first = jnp.zeros((given.shape[1], len(weight)))
    return jax.lax.scan(advance, first, given)[1]


def lstm(layer: tuple[jax.Array, jax.Array], given: jax.Array) -> jax.Array:
    """The outputs after each step, given what the inputs contribute, [L + 1, B, 4 units]."""
    weight, bias = layer

    def advance(state: tuple, x: jax.Array) -> tuple[tuple, jax.Array]:
        output, cell = state
        let_in, keep, new, let_out = jnp.split(output @ weight + bias + x, 4, axis=-1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(let_in) * jnp.tanh(new)
        output = jax.nn.sigmoid(let_out) * jnp.tanh(cell)
        return (output, cell), output

    zeros = jnp.zeros((given.shape[1], len(weight)))
    return jax.lax.scan(advance, (zeros, zeros), given)[1]


def chosen(values: jax.Array, actions: jax.Array) -> jax.Array:
    """The values of these actions."""
    return jnp.take_along_axis(values, actions[..., None], axis=-1)[..., 0]
