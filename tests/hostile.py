"""Bytes that must not do harm."""

import contextlib
import tracemalloc
from collections.abc import Iterator

import pytest

from flame_rl.wire import codec, packing
from flame_rl.wire.inputs import step_columns
from tests.helpers import request_for, spec_of

REQUEST = request_for(
    "CartPole-v1", indices=(4, 9), columns=step_columns(spec_of(3, 2, continuous=False))
)


class Bomb:
    """Fails the test where it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@contextlib.contextmanager
def refused_without_memory(kind: type[Exception], words: str | None = None) -> Iterator[None]:
    """The block raises this, and has taken less than 20 MB."""
    tracemalloc.start()
    with pytest.raises(kind, match=words):
        yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


def decodes_or_refuses(data: bytes) -> None:
    """No decoder does anything but decode or raise WireError."""
    for decode in (
        lambda: codec.decode_result(data, REQUEST),
        lambda: codec.decode_snapshot(data),
        lambda: codec.decode_request(data),
        lambda: codec.decode_describe(data),
        lambda: codec.decode_description(data, "X-v0"),
    ):
        with contextlib.suppress(packing.WireError):
            decode()
