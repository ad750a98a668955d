"""Encode messages as bytes, and decode them again. Received bytes are untrusted: sizes, types,
shapes and finiteness are checked before anything is used; whatever is wrong raises `WireError`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flame_rl.wire import messages
from flame_rl.wire.fields import Kind, WireError, from_data, to_data
from flame_rl.wire.messages import CollectFailure, CollectRequest, EnvironmentSpec, Episodes
from flame_rl.wire.packing import MAX_HEADER_BYTES, Buffer, message_type, pack, pack_buffers, unpack

_Arrays = dict[str, np.ndarray]


def encode_snapshot(snapshot: messages.PolicySnapshot) -> bytes:
    arrays = {
        f"{place}.{name}": array
        for place, layer in enumerate((*snapshot.layers, snapshot.head))
        for name, array in layer.arrays.items()
    }
    return pack("snapshot", to_data(snapshot), arrays)


def decode_snapshot(data: Buffer) -> messages.PolicySnapshot:
    """The snapshot, with finite arrays; `ActingPolicy` checks that its layers are known and fit."""
    header, arrays = unpack(data, "snapshot")
    snapshot = from_data(messages.PolicySnapshot, header)
    for place, layer in enumerate((*snapshot.layers, snapshot.head)):
        for name in layer.arrays:
            layer.arrays[name] = take_array(arrays, f"{place}.{name}")
    _refuse_others(arrays)
    return snapshot


def encode_request(request: CollectRequest) -> bytes:
    starts = {i: request.starts[i] for i in request.indices if i in request.starts}
    arrays = {"indices": np.array(request.indices, np.int64)} | starts_to_arrays(starts)
    return pack("request", to_data(request, but=("indices", "starts")), arrays)


def decode_request(data: Buffer) -> CollectRequest:
    header, arrays = unpack(data, "request")
    indices = take_array(arrays, "indices", "int64")
    if indices.ndim != 1 or indices.size == 0 or indices.min() < 0:
        raise WireError("indices: a list of at least one, and none below 0")
    known = {"indices": tuple(indices.tolist()), "starts": {}}
    request = from_data(CollectRequest, header, **known)
    actions = next((each for each in request.columns if each.name == "actions"), None)
    starts = take_starts(arrays, actions)
    _refuse_others(arrays)
    if starts and (actions is None or not starts.keys() <= {*request.indices}):
        raise WireError("starts: of other indices, or actions are not recorded")
    return replace(request, starts=starts)


def starts_to_arrays(starts: dict[int, messages.Start]) -> _Arrays:
    """The arrays that `take_starts` reads; none without starts."""
    if not starts:
        return {}
    about = [(i, s.seed, s.observed, len(s.actions)) for i, s in starts.items()]
    actions = np.concatenate([start.actions for start in starts.values()])
    sums = np.array([start.so_far for start in starts.values()])
    return {"starts": np.array(about), "starts.actions": actions, "starts.so_far": sums}


def take_starts(
    arrays: _Arrays, column: messages.Column | None = None
) -> dict[int, messages.Start]:
    """Remove the starts of fragments from `arrays`, with actions of that column, or of any; none if
    there are none. Raises WireError unless they have indices, seeds and steps."""
    if "starts" not in arrays:
        return {}
    sums = take_array(arrays, "starts.so_far", "float64").ravel().tolist()
    about = take_array(arrays, "starts", "int64", (len(sums), 4))
    indices, seeds, observed, steps = about.T.tolist()
    if not 0 < len(sums) == len({*indices}) or min(*indices, *seeds) < 0 or min(steps) < 1:
        raise WireError("starts: an index, a seed or a number of steps is out of range")
    actions = _take_rows(arrays, "starts.actions", sum(steps), column)
    parts = np.split(actions, np.cumsum(steps)[:-1])
    rows = zip(indices, seeds, parts, observed, sums, strict=True)
    return {index: messages.Start(*start) for index, *start in rows}


def encode_result(result: Episodes | CollectFailure, request: CollectRequest) -> list[Buffer]:
    """The answer to `request` as buffers to send one after another; the arrays are not copied."""
    if isinstance(result, CollectFailure):
        return [encode_failure(result)]
    arrays = {name: getattr(result, name) for name in messages.ABOUT_EPISODES}
    arrays |= {f"columns.{name}": array for name, array in result.columns.items()}
    return pack_buffers("episodes", _question(request), arrays)


def _question(request: CollectRequest) -> dict[str, Any]:
    """The fields by which an answer is matched to its request."""
    names = ("run_seed", "iteration", "policy_version", "stream", "explore")
    return {"env_id": request.environment.env_id} | {name: getattr(request, name) for name in names}


def decode_result(data: Buffer, request: CollectRequest) -> Episodes | CollectFailure:
    """The answer to `request`: exactly its episodes, or why they are missing. The arrays are views
    of `data`, or of a copy where it is read-only, and as the columns that were asked for say."""
    if message_type(data) == "failure":
        env_id = request.environment.env_id
        return _decode(data, "failure", CollectFailure, env_id=env_id)
    header, arrays = unpack(data, "episodes")
    if header != _question(request):
        raise WireError("these episodes are of another run, iteration or policy")
    asked = np.repeat(request.indices, request.agents)
    episodes = take_episodes(arrays, request.columns, "columns.")
    if not np.array_equal(episodes.index, asked):
        found = episodes.index.tolist()[:20]
        raise WireError(f"index: not the episodes that were asked for: {found}")
    ended, lengths = episodes.terminated | episodes.truncated, episodes.lengths
    most = request.fragment_steps
    fits = ended if most is None else (lengths <= most) & (ended | (lengths == most))
    if not fits.all():
        raise WireError("terminated, truncated: only a fragment of fragment_steps has neither")
    _refuse_others(arrays)
    return episodes


def take_episodes(arrays: _Arrays, columns: Sequence[messages.Column], prefix: str) -> Episodes:
    """Remove episodes or fragments from `arrays`, with columns whose names begin with `prefix`.
    Raises WireError unless there are some, and all of them as the columns say."""
    lengths = take_array(arrays, "lengths", "int64")
    if lengths.ndim != 1 or lengths.size == 0 or lengths.min() < 1 or lengths.max() > 1 << 40:
        raise WireError("lengths: an episode has at least one step")
    others = {name: of for name, of in messages.ABOUT_EPISODES.items() if name != "lengths"}
    about = {name: take_array(arrays, name, of, lengths.shape) for name, of in others.items()}
    rows, found = int(lengths.sum()), {}
    for column in columns:
        more = len(lengths) * column.per_observation
        found[column.name] = _take_rows(arrays, prefix + column.name, rows + more, column)
    return Episodes(lengths=lengths, **about, columns=found)


def _take_rows(arrays: _Arrays, name: str, rows: int, column: messages.Column | None) -> np.ndarray:
    """Remove an array of this many rows, each as the column says; None: of any kind."""
    array = take_array(arrays, name, column and column.dtype)
    shape = (rows, *(array.shape[1:] if column is None else column.shape))
    if array.shape != shape:
        raise WireError(f"array {name}: shape {shape}, not {array.shape}")
    choices = column.choices if column is not None and array.size else ()
    # Comparing every number takes longer.
    if choices and (array.min() < 0 or (array.max(axis=0).ravel() >= choices).any()):
        raise WireError(f"{name}: a choice below 0, or not below {choices[:20]}")
    return array


def encode_failure(failure: CollectFailure) -> bytes:
    return pack("failure", to_data(failure, but=("env_id",)), {})


def failure_kind(answer: Buffer) -> messages.FailureKind | None:
    """The kind of failure that an answer is; None: episodes. Raises WireError if it is neither."""
    if message_type(answer) == "episodes":
        return None
    return _decode(answer, "failure", CollectFailure).kind


def encode_describe(environment: messages.Environment) -> bytes:
    return pack("describe", to_data(environment), {})


def decode_describe(data: Buffer) -> messages.Environment:
    return _decode(data, "describe", messages.Environment)


def encode_description(spec: EnvironmentSpec) -> bytes:
    """Raises WireError if the spaces are of other kinds, or too large to describe."""
    data = pack("description", to_data(spec), {})
    # A checkpoint's header holds a description, and the configuration besides.
    if len(data) > (most := MAX_HEADER_BYTES // 2):
        raise WireError(
            f"the spaces of {spec.env_id} take more than {most} bytes to describe: give "
            "neighbouring numbers of a Box the same bounds"
        )
    return data


def decode_description(data: Buffer, env_id: str) -> EnvironmentSpec | CollectFailure:
    """The environment's description, or why there is none; `env_id` is what was asked about."""
    if message_type(data) == "failure":
        return _decode(data, "failure", CollectFailure, env_id=env_id)
    return _decode(data, "description", EnvironmentSpec)


def _decode(data: Buffer, name: str, kind: type[Kind], **given: Any) -> Kind:
    """A message without arrays."""
    header, arrays = unpack(data, name)
    _refuse_others(arrays)
    return from_data(kind, header, **given)


def take_array(
    arrays: _Arrays, name: str, dtype: str | None = None, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Remove one array from `arrays`, of this type and shape (None: any), and finite."""
    array = arrays.pop(name, None)
    if array is None:
        raise WireError(f"array {name[:40]}: missing")
    if dtype is not None and array.dtype != dtype:
        raise WireError(f"array {name}: {dtype}, not {array.dtype}")
    if shape is not None and array.shape != shape:
        raise WireError(f"array {name}: shape {shape}, not {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise WireError(f"array {name[:40]}: not finite")
    return array


def _refuse_others(arrays: _Arrays) -> None:
    if arrays:
        raise WireError(f"unexpected arrays: {sorted(arrays)[:10]}")
