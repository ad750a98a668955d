"""The reader of dataclasses: what it takes, what it refuses, and that it writes what it reads."""

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from flame_rl.wire.fields import Converted, Size, WireError, Within, from_data, to_data


@dataclass(frozen=True)
class Lens:
    name: str
    numbers: Annotated[tuple[Annotated[int, Within(0, 9, "from 0 to 9")], ...], Within(1, 3)] = (1,)

    def __post_init__(self) -> None:
        if self.name == "cracked":
            raise WireError("name: cracked lenses are of no use")


def read_reversed(data: Any, name: str) -> str:
    if type(data) is not str:
        raise WireError(f"{name}: nothing to reverse")
    return data[::-1]


@dataclass(frozen=True)
class Camera:
    lens: Lens
    lenses: tuple[Lens, ...]
    count: Size | None
    scale: Annotated[float, Within(0, 1, "from 0 to 1")] | None
    on: bool
    kind: Literal["grey", "colour"]
    code: Annotated[str, Converted(read_reversed, lambda text: text[::-1])]
    more: dict[str, Any]
    zoom: bool = False
    note: str = ""


CAMERA = Camera(
    Lens("a"), (Lens("b", (2, 3)),), 3, 0.5, True, "grey", "abc", {"x": [1]}, note="new"
)
DATA = {
    "lens": {"name": "a"},
    "lenses": [{"name": "b", "numbers": [2, 3]}],
    "count": 3,
    "scale": 0.5,
    "on": True,
    "kind": "grey",
    "code": "cba",
    "more": {"x": [1]},
    "note": "new",
}


def test_what_is_written_is_read():
    assert to_data(CAMERA) == DATA and list(to_data(CAMERA)) == list(DATA)
    assert from_data(Camera, json.loads(json.dumps(DATA))) == CAMERA
    for other in ({"zoom": True}, {"count": None}, {"scale": None}):
        changed = replace(CAMERA, **other)
        assert from_data(Camera, to_data(changed)) == changed
    assert to_data(replace(CAMERA, zoom=True))["zoom"] is True


def test_a_field_with_a_default_may_be_missing():
    del (data := DATA | {"lens": {"name": "a", "numbers": [1]}})["note"]
    assert from_data(Camera, data) == replace(CAMERA, note="")
    assert "note" not in to_data(replace(CAMERA, note=""))


def test_some_fields_come_from_elsewhere():
    data = to_data(CAMERA, but=("lens", "note"))
    assert data.keys() == DATA.keys() - {"lens", "note"}
    assert from_data(Camera, data, lens=Lens("z")) == replace(CAMERA, lens=Lens("z"), note="")
    with pytest.raises(WireError, match=r"^lens: there is no such field$"):
        from_data(Camera, DATA, lens=Lens("z"))


def test_numbers_become_pythons_own():
    camera = from_data(Camera, DATA | {"scale": 1, "count": np.int64(4)})
    assert type(camera.scale) is float and camera.scale == 1
    assert type(camera.count) is int and camera.count == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": True}, "count: an integer, not True"),
        ({"count": 2.0}, "count: an integer, not 2.0"),
        ({"count": 0}, "count: an integer from 1 to 2**63 - 1, not 0"),
        ({"count": 1 << 63}, "count: an integer from 1 to 2**63 - 1, not 9223372036854775808"),
        ({"scale": "1"}, "scale: a number, not 1"),
        ({"scale": True}, "scale: a number, not True"),
        ({"scale": float("nan")}, "scale: from 0 to 1, not nan"),
        ({"scale": 10**400}, "scale: a number, not 1000"),
        ({"on": 1}, "on: True or False, not 1"),
        ({"kind": "blue"}, "kind: grey, colour, not blue"),
        ({"kind": ["grey"]}, "kind: grey, colour, not ['grey']"),
        ({"note": None}, "note: a text, not None"),
        ({"code": 3}, "code: nothing to reverse"),
        ({"more": []}, "more: an object, not []"),
        ({"lens": "a"}, "lens: an object, not a"),
        ({"lens": {}}, "lens.name: missing"),
        ({"lens": {"name": "a", "size": 1}}, "lens.size: there is no such field"),
        ({"lens": {"name": "cracked"}}, "lens.name: cracked lenses"),
        ({"lenses": {"name": "a"}}, "lenses: a list, not {"),
        ({"lenses": [{"name": "a"}, 3]}, "lenses[1]: an object, not 3"),
        ({"lenses": [{"name": "a", "numbers": []}]}, "lenses[0].numbers: a list of 1 to 3"),
        ({"lenses": [{"name": "a", "numbers": [1] * 4}]}, "lenses[0].numbers: a list of 1 to 3"),
        ({"lenses": [{"name": "a", "numbers": [1, 10]}]}, "lenses[0].numbers[1]: from 0 to 9"),
        ({"lenses": [{"name": "a", "numbers": [1, "2"]}]}, "lenses[0].numbers[1]: an integer"),
        ({"lenses": [{"name": "a", "numbers": "12"}]}, "lenses[0].numbers: a list, not 12"),
    ],
)
def test_what_is_wrong_is_named(change, words):
    with pytest.raises(WireError) as caught:
        from_data(Camera, DATA | change)
    assert str(caught.value).startswith(words) and len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["lens", "count", "on", "code"])
def test_what_is_missing_is_named(name):
    data = {key: value for key, value in DATA.items() if key != name}
    with pytest.raises(WireError, match=f"^{name}: missing$"):
        from_data(Camera, data)
