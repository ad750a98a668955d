"""What a new learner takes of another one's state: networks and normalisation, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import nn

from flame_rl.learner.learner import Learner
from flame_rl.learner.training.flat import modules_in
from flame_rl.modules.observations import normalizers_of

# The running moments of a learner; see `Statistics` and `NormalizedObservations`.
_OBSERVATIONS = "observations"
_MOMENTS = (_OBSERVATIONS, "returns")
# A layer's array, such as policy.network.2.weight: the network's name and the layer's place in it.
_PLACED = re.compile(r"(.*\bnetwork\.)(\d+)(\..*)")


@dataclass(frozen=True)
class Taken:
    """What was taken.

    Attributes:
        parts: names of the parts of which something was.
        left: why a layer was not, for each of those that were not.
    """

    parts: tuple[str, ...]
    left: tuple[str, ...]


def take(learner: Learner, state: dict[str, np.ndarray]) -> Taken:
    """Give a new learner what fits of a state that another one's `state_dict` returned.

    A layer is taken where all its arrays have the names and shapes of the other's, and moments
    where they have the shapes. In these names, layers of a network are counted from the first that
    has arrays: the one that selects --policy-observations has none. A network that begins as a copy
    of another, such as a target network, is a copy again. Optimisers, counts and the replay memory
    are as they were.

    Returns:
        Without parts if no weights fit; the learner is then unchanged.
    """
    modules = modules_in(learner.parts)
    new = {name: array.copy() for name, array in learner.state_dict().items()}
    state = _named_as_in(new, state)
    copies = _copies(modules, new)
    sources = [name for name in modules if name not in copies]
    taken, left = _fitting(new, state, (*sources, *_MOMENTS))
    # Biases and the moments of returns may fit anything.
    if not any(array.ndim > 1 for array in taken.values()):
        return Taken((), left)
    merged = new | taken
    for copy, source in copies.items():
        merged |= {f"{copy}.{name}": array for name, array in of_part(source, merged).items()}
    learner.load_state_dict(merged)
    _set_normalizers(learner, modules, taken)
    return Taken(tuple(dict.fromkeys(name.partition(".")[0] for name in taken)), left)


def _named_as_in(new: dict[str, np.ndarray], old: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The old arrays, with the first layer of each network at the place that it has in the new."""
    there, here = _first_places(old), _first_places(new)
    named = {}
    for name, array in old.items():
        if (found := _PLACED.fullmatch(name)) and found[1] in here:
            place = int(found[2]) - there[found[1]] + here[found[1]]
            name = f"{found[1]}{place}{found[3]}"
        named[name] = array
    return named


def _first_places(names: Iterable[str]) -> dict[str, int]:
    """By network, the place of its first layer with arrays."""
    first: dict[str, int] = {}
    for found in filter(None, map(_PLACED.fullmatch, names)):
        first[found[1]] = min(int(found[2]), first.get(found[1], int(found[2])))
    return first


def of_part(part: str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A part's own state, in that of its learner."""
    prefix = f"{part}."
    return {n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)}


def _copies(modules: dict[str, nn.Module], state: dict[str, np.ndarray]) -> dict[str, str]:
    """The networks that a new run begins as copies of one before them; by name, that one's name."""
    found: dict[str, str] = {}
    own = {part: of_part(part, state) for part in modules}
    for number, copy in enumerate(modules):
        for source in list(modules)[:number]:
            if source not in found and _same(own[copy], own[source]):
                found[copy] = source
    return found


def _same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        np.array_equal(array, right[name]) for name, array in left.items()
    )


def _fitting(
    new: dict[str, np.ndarray], old: dict[str, np.ndarray], parts: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The old arrays of these parts that fit, layer by layer, and reasons why others do not, a
    single one for a part that is not there at all."""
    layers: dict[str, list[str]] = {}
    for name in new:
        if name.partition(".")[0] in parts:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
    taken, left, there = {}, [], {name.partition(".")[0] for name in old}
    for layer, names in layers.items():
        unlike = [n for n in names if n in old and _form(old[n]) != _form(new[n])]
        if unlike:
            first = unlike[0]
            left.append(f"{first} is {_form(old[first])} there and {_form(new[first])} here")
        elif all(name in old for name in names):
            taken |= {name: old[name] for name in names}
        else:
            part = layer.partition(".")[0]
            left.append(f"{layer if part in there else part} is not there")
    return taken, tuple(dict.fromkeys(left))


def _form(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _set_normalizers(
    learner: Learner, modules: dict[str, nn.Module], taken: dict[str, np.ndarray]
) -> None:
    """Set the normalisers that the other learner had elsewhere, by the moments that were taken."""
    if f"{_OBSERVATIONS}.mean" not in taken:
        return
    moments = learner.parts[_OBSERVATIONS]
    for part, module in modules.items():
        names = {child: name for name, child in module.named_modules()}
        for numbers, normalizer in normalizers_of(module):
            if ".".join(filter(None, (part, names[normalizer], "mean"))) not in taken:
                normalizer.set(moments.mean[numbers], moments.std[numbers])
