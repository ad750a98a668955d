"""All kinds of layers and heads, by the names that they have in a `PolicySnapshot`."""

from __future__ import annotations

from flame_rl.nets.continuous import GaussianHead, NoisyHead, SquashedGaussianHead
from flame_rl.nets.convolution import ConvolutionLayer
from flame_rl.nets.discrete import (
    CategoricalHead,
    EpsilonGreedyDistributionHead,
    EpsilonGreedyHead,
    FactoredHead,
)
from flame_rl.nets.heads import HeadKind
from flame_rl.nets.layers import (
    CenterLayer,
    DenseLayer,
    FramesLayer,
    LayerKind,
    LayerNormLayer,
    NormalizeLayer,
    ReluLayer,
    ScaleLayer,
    SiluLayer,
    TanhLayer,
)
from flame_rl.nets.recurrent import GRULayer, LSTMLayer

LAYERS: dict[str, type[LayerKind]] = {
    layer.kind: layer
    for layer in (
        NormalizeLayer,
        DenseLayer,
        LayerNormLayer,
        ScaleLayer,
        CenterLayer,
        ConvolutionLayer,
        FramesLayer,
        TanhLayer,
        ReluLayer,
        SiluLayer,
        GRULayer,
        LSTMLayer,
    )
}
HEADS: dict[str, type[HeadKind]] = {
    head.kind: head
    for head in (
        CategoricalHead,
        FactoredHead,
        GaussianHead,
        EpsilonGreedyHead,
        EpsilonGreedyDistributionHead,
        SquashedGaussianHead,
        NoisyHead,
    )
}
