"""What an exported policy has as outputs, for each kind of head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flame_rl.nets.continuous import LOG_STD_RANGE, SquashedGaussian
from flame_rl.nets.discrete import EpsilonGreedyDistribution
from flame_rl.tools.onnx_graph import Graph

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class HeadOutputs:
    """The outputs for one kind of head, other than the head's arrays.

    Attributes:
        add: adds the nodes of these outputs to a graph, given the name of the network's output, its
            width and the head's arrays.
        expected: the same outputs in NumPy, by name, given the head and the network's output,
            float64 [B, width]. `action` is the action without noise; if it is an integer, `values`
            are those of all actions, [B, A].
    """

    add: Callable[[Graph, str, int, Arrays], object]
    expected: Callable[[Any, np.ndarray], Arrays]


def _network_output(name: str) -> HeadOutputs:
    """Only the network's output, under that name."""
    return HeadOutputs(
        lambda graph, x, width, arrays: graph.apply("Identity", x, output=name),
        lambda head, output: {name: output},
    )


def _epsilon_greedy(graph: Graph, x: str, width: int, arrays: Arrays) -> None:
    graph.apply("Identity", x, output="values")
    _best(graph, "values")


def _epsilon_greedy_distribution(graph: Graph, x: str, width: int, arrays: Arrays) -> None:
    support = arrays["support"]
    shape = graph.constant(np.array([-1, width // len(support), len(support)], np.int64))
    logits = graph.apply("Reshape", x, shape, output="logits")
    probabilities = graph.apply("Softmax", logits, axis=2)
    graph.apply("MatMul", probabilities, graph.constant(support), output="values")
    _best(graph, "values")


def _best(graph: Graph, values: str) -> None:
    graph.apply("ArgMax", values, output="action", axis=1, keepdims=0)


def _squashed_gaussian(graph: Graph, x: str, width: int, arrays: Arrays) -> None:
    first, second = np.arange(width, dtype=np.int32).reshape(2, -1)
    mean = graph.apply("Gather", x, graph.constant(first), output="mean", axis=1)
    log_std = graph.apply("Gather", x, graph.constant(second), axis=1)
    graph.apply("Clip", log_std, *map(graph.constant, LOG_STD_RANGE), output="log_std")
    graph.apply("Tanh", mean, output="action")


def _noisy(graph: Graph, x: str, width: int, arrays: Arrays) -> None:
    graph.apply("Clip", x, graph.constant(-1.0), graph.constant(1.0), output="action")


def _of_distribution(head: EpsilonGreedyDistribution, output: np.ndarray) -> Arrays:
    values = head.values(output)
    logits = output.reshape(*values.shape, -1)
    return {"logits": logits, "values": values, "action": head.greedy(output)}


def _of_squashed(head: SquashedGaussian, output: np.ndarray) -> Arrays:
    mean, log_std = head.mean_and_log_std(output)
    return {"mean": mean, "log_std": log_std, "action": head.greedy(output)}


_DETERMINISTIC = HeadOutputs(_noisy, lambda head, output: {"action": head.greedy(output)})
HEAD_OUTPUTS: dict[str, HeadOutputs] = {
    "categorical": _network_output("logits"),
    "factored": _network_output("logits"),
    "gaussian": _network_output("mean"),
    "epsilon_greedy": HeadOutputs(
        _epsilon_greedy, lambda head, output: {"values": output, "action": head.greedy(output)}
    ),
    "epsilon_greedy_distribution": HeadOutputs(_epsilon_greedy_distribution, _of_distribution),
    "squashed_gaussian": HeadOutputs(_squashed_gaussian, _of_squashed),
    "noisy": _DETERMINISTIC,
}
