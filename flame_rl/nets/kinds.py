"""All kinds of layers and heads, by the names that they have in a `PolicySnapshot`."""

from flame_rl.nets import convolution, heads, layers, recurrent
from flame_rl.nets.heads import HeadKind
from flame_rl.nets.layers import LayerKind

# Every class in them that says its `kind` is one.
_MODULES = (layers, convolution, recurrent, heads)
_CLASSES = [
    each
    for module in _MODULES
    for each in vars(module).values()
    if isinstance(each, type) and "kind" in vars(each)
]
LAYERS: dict[str, type[LayerKind]] = {c.kind: c for c in _CLASSES if issubclass(c, LayerKind)}
HEADS: dict[str, type[HeadKind]] = {c.kind: c for c in _CLASSES if issubclass(c, HeadKind)}
