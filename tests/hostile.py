"""Bytes that must not do harm."""

import contextlib

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
