"""Messages to bytes and back, everything checked.

Bytes from elsewhere are not trusted: sizes, types, shapes and finiteness are checked before
anything is used, and whatever is wrong raises `WireError`.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, get_args

import numpy as np

from flame_rl.wire.messages import (
    CollectFailure,
    CollectRequest,
    EnvironmentSpec,
    Episodes,
    FailureKind,
    PolicySnapshot,
    Stream,
)
from flame_rl.wire.packing import Buffer, WireError, in_parts, message_type, pack, unpack

MAX_TEXT_CHARACTERS = 100_000


def encode_snapshot(snapshot: PolicySnapshot) -> bytes:
    arrays = {f"weight_{i}": w for i, w in enumerate(snapshot.weights)}
    arrays |= {f"bias_{i}": b for i, b in enumerate(snapshot.biases)}
    if snapshot.log_std is not None:
        arrays["log_std"] = snapshot.log_std
    if snapshot.observation_mean is not None:
        arrays["observation_mean"] = snapshot.observation_mean
        arrays["observation_std"] = snapshot.observation_std
    header = {
        "version": snapshot.version,
        "activation": snapshot.activation,
        "layers": len(snapshot.weights),
        "continuous": snapshot.continuous,
        "normalizes": snapshot.observation_mean is not None,
    }
    return pack("snapshot", header, arrays)


def decode_snapshot(data: Buffer) -> PolicySnapshot:
    header, arrays = unpack(data, "snapshot")
    layers = _integer(header, "layers", 1, 64)
    weights, biases = [], []
    inputs = None
    for i in range(layers):
        weight = _array(arrays, f"weight_{i}", np.float32, (inputs, None))
        inputs = weight.shape[1]
        weights.append(weight)
        biases.append(_array(arrays, f"bias_{i}", np.float32, (inputs,)))
    continuous = _boolean(header, "continuous")
    log_std = _array(arrays, "log_std", np.float32, (inputs,)) if continuous else None
    mean = std = None
    if _boolean(header, "normalizes"):
        mean = _array(arrays, "observation_mean", np.float32, weights[0].shape[:1])
        std = _array(arrays, "observation_std", np.float32, weights[0].shape[:1])
        if not (std > 0).all():
            raise WireError("observation_std: not above 0")
    _nothing_left(arrays)
    return PolicySnapshot(
        version=_integer(header, "version"),
        activation=_text(header, "activation"),
        weights=tuple(weights),
        biases=tuple(biases),
        log_std=log_std,
        observation_mean=mean,
        observation_std=std,
    )


def encode_request(request: CollectRequest) -> bytes:
    # Not `asdict`, which copies every index.
    header = dict(vars(request))
    indices = np.array(header.pop("indices"), np.int64)
    return pack("request", header, {"indices": indices})


def decode_request(data: Buffer) -> CollectRequest:
    header, arrays = unpack(data, "request")
    limit = header.get("max_episode_steps")
    indices = _array(arrays, "indices", np.int64, (None,))
    if len(indices) == 0 or indices.min() < 0:
        raise WireError("indices: at least one, and none below 0")
    _nothing_left(arrays)
    return CollectRequest(
        env_id=_text(header, "env_id"),
        max_episode_steps=None if limit is None else _integer(header, "max_episode_steps", 1),
        run_seed=_integer(header, "run_seed"),
        iteration=_integer(header, "iteration"),
        indices=tuple(indices.tolist()),
        policy_version=_integer(header, "policy_version"),
        simulator=_text(header, "simulator"),
        stream=_one_of(header, "stream", get_args(Stream)),
        explore=_boolean(header, "explore"),
    )


def encode_episodes(episodes: Episodes, request: CollectRequest) -> bytes:
    """See `episodes_in_parts`."""
    return b"".join(episodes_in_parts(episodes, request))


def episodes_in_parts(episodes: Episodes, request: CollectRequest) -> list[Buffer]:
    """The message, to be sent one part after another: the arrays themselves, not copied.

    The header says which question they answer, so that none is taken for another's answer.
    """
    arrays = {
        "index": episodes.index,
        "length": episodes.lengths,
        "terminated": episodes.terminated.view(np.uint8),
        "truncated": episodes.truncated.view(np.uint8),
        "observations": episodes.observations,
        "actions": episodes.actions,
        "rewards": episodes.rewards,
    }
    return in_parts("episodes", _question(request), arrays)


def _question(request: CollectRequest) -> dict[str, Any]:
    return {
        "env_id": request.env_id,
        "run_seed": request.run_seed,
        "iteration": request.iteration,
        "policy_version": request.policy_version,
        "stream": request.stream,
        "explore": request.explore,
    }


def encode_failure(failure: CollectFailure) -> bytes:
    header = asdict(failure)
    for name in ("message", "traceback"):
        header[name] = header[name][-MAX_TEXT_CHARACTERS:]
    return pack("failure", header, {})


def decode_result(
    data: Buffer, snapshot: PolicySnapshot, request: CollectRequest
) -> Episodes | CollectFailure:
    """The answer to `request`: its episodes, all of them and no others, or why they are missing.

    The returned arrays are views of `data`, or of a copy where it is read-only; shapes are checked
    against the snapshot.
    """
    if message_type(data) == "failure":
        return _decode_failure(data)
    header, arrays = unpack(data, "episodes")
    if any(header.get(name) != value for name, value in _question(request).items()):
        raise WireError("these episodes are of another run, iteration or policy")
    index = _array(arrays, "index", np.int64, (None,))
    count = len(index)
    length = _array(arrays, "length", np.int64, (count,))
    terminated = _array(arrays, "terminated", np.uint8, (count,))
    truncated = _array(arrays, "truncated", np.uint8, (count,))
    if tuple(index.tolist()) != request.indices:
        raise WireError(f"index: not the episodes that were asked for: {index.tolist()[:20]}")
    if length.min() < 1 or length.max() > 1 << 40:
        raise WireError("length: an episode has at least one step")
    if ((terminated > 1) | (truncated > 1) | (terminated + truncated == 0)).any():
        raise WireError("terminated, truncated: 0 or 1, and an episode ends by one of them")
    steps = int(length.sum())
    observations = _array(
        arrays, "observations", np.float32, (steps + count, snapshot.observation_dim)
    )
    rewards = _array(arrays, "rewards", np.float64, (steps,))
    if snapshot.continuous:
        actions = _array(arrays, "actions", np.float32, (steps, snapshot.action_dim))
    else:
        actions = _array(arrays, "actions", np.int32, (steps,))
        if actions.min() < 0 or actions.max() >= snapshot.action_dim:
            raise WireError(f"actions: outside 0..{snapshot.action_dim - 1}")
    _nothing_left(arrays)
    return Episodes(
        index=index,
        lengths=length,
        terminated=terminated.view(bool),
        truncated=truncated.view(bool),
        observations=observations,
        actions=actions,
        rewards=rewards,
    )


def encode_describe(env_id: str, max_episode_steps: int | None, simulator: str = "auto") -> bytes:
    """The question that `decode_description` reads the answer of."""
    header = {"env_id": env_id, "max_episode_steps": max_episode_steps, "simulator": simulator}
    return pack("describe", header, {})


def decode_describe(data: Buffer) -> tuple[str, int | None, str]:
    header, arrays = unpack(data, "describe")
    _nothing_left(arrays)
    limit = header.get("max_episode_steps")
    return (
        _text(header, "env_id"),
        None if limit is None else _integer(header, "max_episode_steps", 1),
        _text(header, "simulator"),
    )


def encode_description(spec: EnvironmentSpec) -> bytes:
    return pack("description", asdict(spec), {})


def decode_description(data: Buffer) -> EnvironmentSpec | CollectFailure:
    if message_type(data) == "failure":
        return _decode_failure(data)
    header, arrays = unpack(data, "description")
    _nothing_left(arrays)
    return read_spec(header)


def read_spec(header: dict[str, Any]) -> EnvironmentSpec:
    """The description of an environment, from JSON of unknown origin."""
    return EnvironmentSpec(
        env_id=_text(header, "env_id"),
        observation_dim=_integer(header, "observation_dim", 1),
        action_dim=_integer(header, "action_dim", 1),
        continuous=_boolean(header, "continuous"),
        note=_text(header, "note"),
    )


def _decode_failure(data: Buffer) -> CollectFailure:
    header, arrays = unpack(data, "failure")
    _nothing_left(arrays)
    values: dict[str, Any] = {}
    for field in fields(CollectFailure):
        value = header.get(field.name)
        if field.name in ("iteration", "index", "step", "seed"):
            values[field.name] = None if value is None else _integer(header, field.name)
        elif field.name == "kind":
            values["kind"] = _one_of(header, "kind", get_args(FailureKind))
        else:
            values[field.name] = _text(header, field.name)
    return CollectFailure(**values)


def _array(
    arrays: dict[str, np.ndarray], name: str, dtype: type, shape: tuple[int | None, ...]
) -> np.ndarray:
    """Take one array out of the message; None in `shape` stands for any size of at least 0."""
    array = arrays.pop(name, None)
    if array is None:
        raise WireError(f"{name}: missing")
    if array.dtype != dtype:
        raise WireError(f"{name}: {array.dtype} where {np.dtype(dtype)} is expected")
    if array.ndim != len(shape) or any(
        want is not None and have != want for have, want in zip(array.shape, shape, strict=True)
    ):
        raise WireError(f"{name}: shape {array.shape} where {shape} is expected")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise WireError(f"{name}: not finite")
    return array


def _nothing_left(arrays: dict[str, np.ndarray]) -> None:
    if arrays:
        raise WireError(f"arrays that nothing expects: {sorted(arrays)[:10]}")


def _integer(header: dict[str, Any], name: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    value = header.get(name)
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"{name}: not an integer from {low} to {high}: {str(value)[:40]}")
    return value


def _boolean(header: dict[str, Any], name: str) -> bool:
    value = header.get(name)
    if type(value) is not bool:
        raise WireError(f"{name}: not true or false: {str(value)[:40]}")
    return value


def _text(header: dict[str, Any], name: str) -> str:
    value = header.get(name)
    if type(value) is not str or len(value) > MAX_TEXT_CHARACTERS:
        raise WireError(f"{name}: not a text of at most {MAX_TEXT_CHARACTERS} characters")
    return value


def _one_of(header: dict[str, Any], name: str, known: tuple[str, ...]) -> Any:
    value = _text(header, name)
    if value not in known:
        raise WireError(f"{name}: {value[:40]!r} is none of {', '.join(known)}")
    return value
