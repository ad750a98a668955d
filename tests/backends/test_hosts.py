"""What executors run beside what this machine runs."""

from __future__ import annotations

import json

import pytest

from flame_rl.actor.remote import processor, versions
from flame_rl.backends.flame.hosts import Hosts
from flame_rl.system.errors import UsageError
from flame_rl.wire.packing import WireError


def about(node: str, **others: str) -> bytes:
    return json.dumps({"node": node} | versions() | processor() | others).encode()


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_executors_with_other_versions_are_refused_by_their_nodes(name: str) -> None:
    hosts = Hosts()
    hosts.hear(about("alpha"))
    hosts.refuse_others()
    for node in ("gamma", "beta"):
        hosts.hear(about(node, **{name: "3.99"}))
    words = f"Nodes beta, gamma run other versions.*: {name} {versions()[name]} here, 3.99 there"
    with pytest.raises(UsageError, match=words):
        hosts.refuse_others()


@pytest.mark.parametrize("name", processor())
def test_nodes_with_another_kernel_are_named_once(name: str) -> None:
    hosts, said = Hosts(), []
    for node in ("alpha", "beta", "gamma"):
        hosts.hear(about(node, **({name: "Zen"} if node != "alpha" else {})))
    for _ in range(2):
        hosts.hear(about("beta", **{name: "Zen"}))
        hosts.tell(said.append)
    assert len(said) == 1
    assert said[0].startswith("Nodes beta, gamma have another processor than this machine: ")
    assert f"{name} {processor()[name]} here, Zen there" in said[0]
    hosts.hear(about("delta", **{name: "Zen"}))
    hosts.tell(said.append)
    assert said[1].startswith("Node delta has ")
    hosts.refuse_others()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"node": 1}', b"\xff", b'{"node": "' + b"a" * 9999]
)
def test_what_is_no_account_of_an_executor_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="what an executor says of itself"):
        Hosts().hear(data)
