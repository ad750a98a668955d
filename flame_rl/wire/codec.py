"""Encode messages as bytes, and decode them again.

Received bytes are untrusted: sizes, types, shapes and finiteness are checked before anything is
used, and whatever is wrong raises `WireError`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any, get_args

import numpy as np

from flame_rl.wire.messages import (
    MAX_LAYERS,
    CollectFailure,
    CollectRequest,
    Column,
    Environment,
    EnvironmentSpec,
    Episodes,
    FailureKind,
    Layer,
    PolicySnapshot,
    Stream,
)
from flame_rl.wire.packing import (
    MAX_HEADER_BYTES,
    Buffer,
    WireError,
    in_parts,
    message_type,
    pack,
    unpack,
)
from flame_rl.wire.spaces import space_from_data, space_to_data

MAX_TEXT_CHARACTERS = 100_000
MAX_AGENTS = 1 << 16
# A spec shares its header with other fields.
_MAX_SPEC_BYTES = MAX_HEADER_BYTES // 2
_MAX_COLUMNS = 64
_MAX_RANK = 8
_MAX_ROW_NUMBERS = 1 << 24
_COLUMN_DTYPES = ("float32", "float64", "int32", "int64", "uint8")


def encode_snapshot(snapshot: PolicySnapshot) -> bytes:
    arrays = {
        _array_name(place, name): array
        for place, layer in enumerate((*snapshot.layers, snapshot.head))
        for name, array in layer.arrays.items()
    }
    header = {
        "version": snapshot.version,
        "layers": [_layer_data(layer) for layer in snapshot.layers],
        "head": _layer_data(snapshot.head),
    }
    return pack("snapshot", header, arrays)


def _layer_data(layer: Layer) -> dict[str, Any]:
    return {"kind": layer.kind, "arrays": list(layer.arrays)}


def _array_name(place: int, name: str) -> str:
    return f"{place}.{name}"


def decode_snapshot(data: Buffer) -> PolicySnapshot:
    """The snapshot, with finite arrays. `flame_rl.nets.acting.check_snapshot` checks that
    the kinds of its layers are known and that the layers fit each other."""
    header, arrays = unpack(data, "snapshot")
    listed = header.get("layers")
    if not isinstance(listed, list) or len(listed) > MAX_LAYERS:
        raise WireError(f"layers: not a list of at most {MAX_LAYERS}")
    *layers, head = (
        _read_layer(place, entry, arrays)
        for place, entry in enumerate([*listed, header.get("head")])
    )
    _nothing_left(arrays)
    return PolicySnapshot(version=_integer(header, "version"), layers=tuple(layers), head=head)


def _read_layer(place: int, entry: Any, arrays: dict[str, np.ndarray]) -> Layer:
    if not isinstance(entry, dict):
        raise WireError(f"layer {place}: not a layer: {str(entry)[:40]}")
    names = entry.get("arrays")
    if not isinstance(names, list) or any(type(name) is not str for name in names):
        raise WireError(f"layer {place}: arrays: not a list of names")
    taken = {}
    for name in names:
        array = arrays.pop(_array_name(place, name), None)
        if array is None:
            raise WireError(f"layer {place}: {name[:40]}: missing")
        _check_finite(f"layer {place}: {name[:40]}", array)
        taken[name] = array
    return Layer(_text(entry, "kind"), taken)


def encode_request(request: CollectRequest) -> bytes:
    # Not `asdict`, which copies every index.
    header = dict(vars(request))
    indices = np.array(header.pop("indices"), np.int64)
    if request.agents == 1:
        del header["agents"]
    header["environment"] = _environment_data(request.environment)
    header["columns"] = [vars(column) for column in request.columns]
    return pack("request", header, {"indices": indices})


def decode_request(data: Buffer) -> CollectRequest:
    header, arrays = unpack(data, "request")
    indices = _array(arrays, "indices", np.int64, (None,))
    if len(indices) == 0 or indices.min() < 0:
        raise WireError("indices: at least one, and none below 0")
    _nothing_left(arrays)
    return CollectRequest(
        environment=_read_environment(header),
        run_seed=_integer(header, "run_seed"),
        iteration=_integer(header, "iteration"),
        indices=tuple(indices.tolist()),
        policy_version=_integer(header, "policy_version"),
        columns=_read_columns(header),
        stream=_one_of(header, "stream", get_args(Stream)),
        explore=_boolean(header, "explore"),
        agents=_integer(header, "agents", 1, MAX_AGENTS) if "agents" in header else 1,
    )


def _environment_data(environment: Environment) -> dict[str, Any]:
    # What few environments have is left out of the messages of all others.
    return {
        name: value
        for name, value in vars(environment).items()
        if value != () and value is not False
    }


def _read_environment(header: dict[str, Any]) -> Environment:
    data = header.get("environment")
    if not isinstance(data, dict):
        raise WireError(f"environment: not an environment: {str(data)[:40]}")
    return Environment(
        env_id=_text(data, "env_id"),
        max_episode_steps=_integer_or_none(data, "max_episode_steps", 1),
        simulator=_text(data, "simulator"),
        reward_parts=_texts(data, "reward_parts"),
        agent_number="agent_number" in data and _boolean(data, "agent_number"),
    )


def _read_columns(header: dict[str, Any]) -> tuple[Column, ...]:
    data = header.get("columns")
    if not isinstance(data, list) or not 0 < len(data) <= _MAX_COLUMNS:
        raise WireError(f"columns: not a list of 1 to {_MAX_COLUMNS}")
    columns = tuple(_read_column(entry) for entry in data)
    if len({column.name for column in columns}) < len(columns):
        raise WireError("columns: one name comes twice")
    return columns


def _read_column(data: Any) -> Column:
    if not isinstance(data, dict):
        raise WireError(f"columns: not a column: {str(data)[:40]}")
    column = Column(
        name=_text(data, "name"),
        dtype=_one_of(data, "dtype", _COLUMN_DTYPES),
        shape=_integers(data, "shape", 0),
        per_observation=_boolean(data, "per_observation"),
        choices=_integers(data, "choices", 1),
    )
    numbers = math.prod(column.shape)
    if len(column.shape) > _MAX_RANK or not 0 < numbers <= _MAX_ROW_NUMBERS:
        raise WireError(f"columns: {column.name[:40]}: a row of shape {column.shape[:9]}")
    if column.choices and (len(column.choices) != numbers or not column.dtype.startswith("int")):
        raise WireError(f"columns: {column.name[:40]}: choices: one for each integer of a row")
    return column


def encode_episodes(episodes: Episodes, request: CollectRequest) -> bytes:
    """The message of `episodes_in_parts` as one byte string."""
    return b"".join(episodes_in_parts(episodes, request))


def episodes_in_parts(episodes: Episodes, request: CollectRequest) -> list[Buffer]:
    """The answer to `request` as buffers to send one after another; the arrays are not copied.

    The header identifies the request, so that the answer is never taken for one to another.
    """
    arrays = {
        "index": episodes.index,
        "length": episodes.lengths,
        "terminated": episodes.terminated.view(np.uint8),
        "truncated": episodes.truncated.view(np.uint8),
    }
    for name, array in episodes.columns.items():
        arrays[_column_name(name)] = array
    return in_parts("episodes", _question(request), arrays)


def _column_name(name: str) -> str:
    return f"columns.{name}"


def _question(request: CollectRequest) -> dict[str, Any]:
    """The fields by which an answer is matched to its request."""
    return {
        "env_id": request.environment.env_id,
        "run_seed": request.run_seed,
        "iteration": request.iteration,
        "policy_version": request.policy_version,
        "stream": request.stream,
        "explore": request.explore,
    }


def encode_failure(failure: CollectFailure) -> bytes:
    return pack("failure", asdict(failure), {})


def decode_result(data: Buffer, request: CollectRequest) -> Episodes | CollectFailure:
    """The answer to `request`: exactly its episodes, or why they are missing.

    The returned arrays are views of `data`, or of a copy where it is read-only; types, shapes and
    ranges are those of the request's columns.
    """
    if message_type(data) == "failure":
        return decode_failure(data)
    header, arrays = unpack(data, "episodes")
    if any(header.get(name) != value for name, value in _question(request).items()):
        raise WireError("these episodes are of another run, iteration or policy")
    index = _array(arrays, "index", np.int64, (None,))
    count = len(index)
    length = _array(arrays, "length", np.int64, (count,))
    terminated = _array(arrays, "terminated", np.uint8, (count,))
    truncated = _array(arrays, "truncated", np.uint8, (count,))
    if not np.array_equal(index, np.repeat(request.indices, request.agents)):
        raise WireError(f"index: not the episodes that were asked for: {index.tolist()[:20]}")
    if length.min() < 1 or length.max() > 1 << 40:
        raise WireError("length: an episode has at least one step")
    if ((terminated > 1) | (truncated > 1) | (terminated + truncated == 0)).any():
        raise WireError("terminated, truncated: 0 or 1, and an episode ends by one of them")
    steps = int(length.sum())
    columns = {
        column.name: _read_rows(arrays, column, steps + count if column.per_observation else steps)
        for column in request.columns
    }
    _nothing_left(arrays)
    return Episodes(
        index=index,
        lengths=length,
        terminated=terminated.view(bool),
        truncated=truncated.view(bool),
        columns=columns,
    )


def _read_rows(arrays: dict[str, np.ndarray], column: Column, rows: int) -> np.ndarray:
    name = _column_name(column.name)
    array = _array(arrays, name, np.dtype(column.dtype), (rows, *column.shape))
    if column.choices:
        # Only the maximum is compared: comparing every number takes longer.
        highest = array.reshape(rows, -1).max(axis=0) if column.shape else array.max()
        if array.min() < 0 or (highest >= column.choices).any():
            raise WireError(f"{name}: a choice below 0, or not below {column.choices[:20]}")
    return array


def encode_describe(environment: Environment) -> bytes:
    """The request for a description, whose answer `decode_description` reads."""
    return pack("describe", {"environment": _environment_data(environment)}, {})


def decode_describe(data: Buffer) -> Environment:
    header, arrays = unpack(data, "describe")
    _nothing_left(arrays)
    return _read_environment(header)


def encode_description(spec: EnvironmentSpec) -> bytes:
    return pack("description", spec_data(spec), {})


def decode_description(data: Buffer) -> EnvironmentSpec | CollectFailure:
    if message_type(data) == "failure":
        return decode_failure(data)
    header, arrays = unpack(data, "description")
    _nothing_left(arrays)
    return read_spec(header)


def spec_data(spec: EnvironmentSpec) -> dict[str, Any]:
    """The spec as JSON data. Raises WireError if its spaces are of other kinds or too large."""
    data = {
        "env_id": spec.env_id,
        "observation_space": space_to_data(spec.observation_space),
        "action_space": space_to_data(spec.action_space),
        "note": spec.note,
        "time_limit": spec.time_limit,
    }
    if spec.reward_shape:
        data["reward_shape"] = list(spec.reward_shape)
    if spec.agents:
        data["agents"] = list(spec.agents)
    if len(json.dumps(data)) > _MAX_SPEC_BYTES:
        raise WireError(
            f"the spaces of {spec.env_id} take more than {_MAX_SPEC_BYTES} bytes to describe: give "
            "neighbouring numbers of a Box the same bounds"
        )
    return data


def read_spec(header: dict[str, Any]) -> EnvironmentSpec:
    """The inverse of `spec_data`, for untrusted JSON data."""
    spaces = {}
    for name in ("observation_space", "action_space"):
        try:
            spaces[name] = space_from_data(header.get(name))
        except WireError as error:
            raise WireError(f"{name}: {error}") from error
    spec = EnvironmentSpec(
        env_id=_text(header, "env_id"),
        note=_text(header, "note"),
        time_limit=_integer_or_none(header, "time_limit", 1),
        reward_shape=_integers(header, "reward_shape", 1) if "reward_shape" in header else (),
        agents=_texts(header, "agents"),
        **spaces,
    )
    if len(set(spec.agents)) < len(spec.agents) or len(spec.agents) > MAX_AGENTS:
        raise WireError(f"agents: not up to {MAX_AGENTS} names, each once")
    if len(spec.reward_shape) > 1:
        raise WireError(f"reward_shape: not that of a vector: {spec.reward_shape[:9]}")
    if spec.observation_dim < 1:
        raise WireError("observation_space: it has no numbers")
    # Dict and Tuple have no shape, and cannot be action spaces.
    if spec.action_space.shape is None or spec.action_dim < 1:
        raise WireError("action_space: it has no numbers")
    return spec


def decode_failure(data: Buffer) -> CollectFailure:
    """Raises WireError if the bytes are no failure."""
    header, arrays = unpack(data, "failure")
    _nothing_left(arrays)
    values: dict[str, Any] = {}
    for field in fields(CollectFailure):
        if field.name in ("iteration", "index", "step", "seed"):
            values[field.name] = _integer_or_none(header, field.name)
        elif field.name == "kind":
            values["kind"] = _one_of(header, "kind", get_args(FailureKind))
        else:
            values[field.name] = _text(header, field.name)
    return CollectFailure(**values)


def _array(
    arrays: dict[str, np.ndarray],
    name: str,
    dtype: type | np.dtype,
    shape: tuple[int | None, ...],
) -> np.ndarray:
    """Remove one array from `arrays` and check it; None in `shape` allows any size."""
    array = arrays.pop(name, None)
    if array is None:
        raise WireError(f"{name}: missing")
    if array.dtype != dtype:
        raise WireError(f"{name}: {array.dtype} where {np.dtype(dtype)} is expected")
    if array.ndim != len(shape) or any(
        want is not None and have != want for have, want in zip(array.shape, shape, strict=True)
    ):
        raise WireError(f"{name}: shape {array.shape} where {shape} is expected")
    _check_finite(name, array)
    return array


def _check_finite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise WireError(f"{name}: not finite")


def _nothing_left(arrays: dict[str, np.ndarray]) -> None:
    if arrays:
        raise WireError(f"unexpected arrays: {sorted(arrays)[:10]}")


def _integer(header: dict[str, Any], name: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    value = header.get(name)
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"{name}: not an integer from {low} to {high}: {str(value)[:40]}")
    return value


def _integer_or_none(header: dict[str, Any], name: str, low: int = 0) -> int | None:
    return None if header.get(name) is None else _integer(header, name, low)


def _integers(header: dict[str, Any], name: str, low: int) -> tuple[int, ...]:
    values = header.get(name)
    known = isinstance(values, list) and len(values) <= _MAX_ROW_NUMBERS
    if not known or any(type(value) is not int or value < low for value in values):
        raise WireError(f"{name}: not a list of integers from {low}: {str(values)[:40]}")
    return tuple(values)


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


def _texts(header: dict[str, Any], name: str) -> tuple[str, ...]:
    """A list of texts, which may be missing."""
    values = header.get(name, [])
    if not isinstance(values, list) or any(type(value) is not str for value in values):
        raise WireError(f"{name}: not a list of texts: {str(values)[:40]}")
    return tuple(values)


def _one_of(header: dict[str, Any], name: str, known: tuple[str, ...]) -> Any:
    value = _text(header, name)
    if value not in known:
        raise WireError(f"{name}: {value[:40]!r} is none of {', '.join(known)}")
    return value
