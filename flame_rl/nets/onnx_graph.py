"""An ONNX graph, written node by node. The caller passes the package onnx in."""

from __future__ import annotations

from typing import Any

import numpy as np


class Graph:
    """An ONNX graph in the making: one input, nodes, and constants."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: np.ndarray | float) -> str:
        """Add a constant, float32 or of the integers' own type; returns its name."""
        name = f"constant_{len(self.constants)}"
        array = np.asarray(values)
        if array.dtype.kind != "i":
            array = array.astype(np.float32)
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def apply(
        self,
        operation: str,
        *inputs: str,
        output: str | None = None,
        **attributes: float | list[int],
    ) -> str:
        """Add a node; returns the name of its output, which is `output` if that is given."""
        output = output or f"value_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operation, inputs, [output], **attributes))
        return output
