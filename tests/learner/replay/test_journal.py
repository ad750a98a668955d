"""The journal: what is restored is as if the run had never stopped, or is refused."""

import hashlib
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.off_policy.replay.journal import Journal, JournalError, Place
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import n_step
from flame_rl.wire import packing
from tests.helpers import contents
from tests.learner.replay.oracle import CONTINUOUS, DISCRETE, make_episodes

CAPACITY = 40
SEGMENT = 3000


def begins_of(folder):
    return [int(name[:12]) for name in contents(folder)]


def step(journal, store, k, columns=CONTINUOUS):
    """Iteration k's episodes, the same whenever it is played."""
    rng = np.random.default_rng(k)
    count = rng.integers(1, 5)
    episodes = make_episodes(rng.integers(1, 15, count), rng.random(count) < 0.5, k, columns)
    journal.append(episodes)
    store.add(episodes)


def opened(folder, columns=CONTINUOUS, segment=SEGMENT):
    """A journal without episodes, and its store."""
    journal, store = Journal(folder, columns, segment), ReplayStore(columns, CAPACITY)
    journal.restore(store, Place(CAPACITY))
    return journal, store


def played(folder, iterations, columns=CONTINUOUS, segment=SEGMENT):
    """A journal, its store, and the places after each number of iterations."""
    journal, store = opened(folder, columns, segment)
    places = [journal.place(store)]
    for k in range(iterations):
        step(journal, store, k, columns)
        places.append(journal.place(store))
    return journal, store, places


def restored(folder, place, columns=CONTINUOUS):
    journal, store = Journal(folder, columns, SEGMENT), ReplayStore(columns, CAPACITY)
    journal.restore(store, place)
    return journal, store


def assert_same(one, other):
    names = ("episodes", "steps", "first", "oldest")
    assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
    positions = np.arange(one.first, one.steps)
    if len(positions):
        left, right = (n_step(store, positions, 3, 0.9) for store in (one, other))
        assert set(left) == set(right)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(1, 5000),
    st.sampled_from([CONTINUOUS, DISCRETE]),
)
def test_a_resumed_run_is_as_one_that_never_stopped(
    tmp_path_factory, stopped, more, segment, columns
):
    """Wherever it stopped and segments end, and whatever it had played beyond its last place."""
    folder = tmp_path_factory.mktemp("journal")
    journal, store = opened(folder, columns, segment)
    for k in range(stopped):
        step(journal, store, k, columns)
    place = journal.place(store)
    for k in range(stopped, stopped + more):
        step(journal, store, k, columns)
    journal.forget(place.oldest)
    before, last, again = contents(folder), journal.place(store), ReplayStore(columns, CAPACITY)
    journal = Journal(folder, columns, segment)
    journal.restore(again, place)
    assert journal.place(again) == place
    for k in range(stopped, stopped + more):
        step(journal, again, k, columns)
    assert_same(store, again)
    assert (contents(folder), journal.place(again)) == (before, last)


@pytest.fixture
def torn(tmp_path):
    """A folder whose newest segment has several records: its places, path, and where the last
    record begins and ends."""
    folder = tmp_path / "torn"
    _, _, places = played(folder, 5)
    assert places[-1].segment == places[-2].segment and places[-2].end > 0
    path = folder / f"{places[-1].segment:012d}.replay"
    return folder, places, path, places[-2].end, places[-1].end


def test_a_record_torn_at_any_byte_is_cut_off_by_what_is_restored(torn):
    folder, places, path, start, end = torn
    whole = path.read_bytes()
    assert len(whole) == end
    for length in [*range(start, start + 100), *range(start + 100, end, 9)]:
        path.write_bytes(whole[:length])
        journal, store = Journal(folder, CONTINUOUS, SEGMENT), ReplayStore(CONTINUOUS, CAPACITY)
        with pytest.raises(JournalError, match=r"checkpoint needs.*another checkpoint"):
            journal.restore(store, places[-1])
        assert path.read_bytes() == whole[:length]
        journal.restore(store, places[-2])
        assert path.read_bytes() == whole[:start]
        step(journal, store, len(places) - 2)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("first", [False, True])
def test_a_flipped_byte_anywhere_is_found_and_can_be_mended(first, torn):
    """In the last record of the newest segment, or in its first."""
    folder, places, path, start, end = torn
    whole, store = path.read_bytes(), ReplayStore(CONTINUOUS, CAPACITY)
    read = Journal(folder, CONTINUOUS).read()
    newest = [record for record in read if record.segment == places[-1].segment]
    begins, ends = (0, newest[0].end) if first else (start, end)
    for place in (*range(begins, begins + 64), *range(begins + 64, ends, 5)):
        altered = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        path.write_bytes(altered)
        with pytest.raises(JournalError):
            Journal(folder, CONTINUOUS, SEGMENT).restore(store, places[-1])
        assert path.read_bytes() == altered
    path.write_bytes(whole)
    Journal(folder, CONTINUOUS, SEGMENT).restore(store, places[-1])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("part", ["all", "the oldest segment", "the newest segment"])
def test_episodes_of_another_run_are_refused_though_their_lengths_are_equal(part, tmp_path):
    """Those of the second run have other rewards."""
    folders, places = (tmp_path / "one", tmp_path / "other"), []
    for folder, reward in zip(folders, (0, 1), strict=True):
        journal, store = opened(folder, segment=1)
        for k in range(12):
            episodes = make_episodes([7, 5], [True, False], k)
            episodes.columns["rewards"][:] += reward
            journal.append(episodes)
            store.add(episodes)
        places.append(journal.place(store))
    names = sorted(contents(folders[0]))
    needed = [name for name in names if int(name[:12]) > places[0].oldest - 2]
    assert contents(folders[0]).keys() == contents(folders[1]).keys() and len(needed) > 1
    for name in {"all": names, "the oldest segment": needed[:1]}.get(part, needed[-1:]):
        shutil.copy(folders[1] / name, folders[0] / name)
    before, store = contents(folders[0]), ReplayStore(CONTINUOUS, CAPACITY)
    with pytest.raises(JournalError, match="are those of another run"):
        Journal(folders[0], CONTINUOUS).restore(store, places[0])
    assert contents(folders[0]) == before


def test_segments_are_deleted_once_no_place_needs_them(tmp_path):
    journal, store, places = played(tmp_path, 30, segment=1)
    # The second place's oldest episode begins a segment.
    for kept in (10, 23, 30):
        journal.forget(places[kept].oldest)
        begins = sorted(begins_of(tmp_path))
        # All but the first begin later than the oldest episode that is needed.
        assert begins[0] <= places[kept].oldest < begins[1]
        copy = tmp_path.parent / f"{tmp_path.name}-{kept}"
        shutil.copytree(tmp_path, copy)
        _, again = restored(copy, places[kept])
        assert again.steps == places[kept].steps
    assert places[23].oldest in begins_of(tmp_path.parent / f"{tmp_path.name}-23")
    assert_same(store, again)
    with pytest.raises(JournalError):
        restored(tmp_path, places[1])


@pytest.mark.parametrize("columns", [CONTINUOUS, DISCRETE])  # of what was there before
def test_a_run_that_begins_anew_empties_the_folder(columns, tmp_path):
    _, _, places = played(tmp_path / "like", 1)
    played(tmp_path / "journal", 10, columns)
    tmp_path /= "journal"
    journal, store = restored(tmp_path, Place(CAPACITY))
    assert contents(tmp_path) == {} and journal.place(store) == places[0]
    step(journal, store, 0)
    assert journal.place(store) == places[1]


@pytest.mark.parametrize(
    ("columns", "name", "change", "words"),
    [
        (DISCRETE, "column actions", 99, "column actions: a choice below 0, or not below"),
        (DISCRETE, "column actions", -1, "column actions: a choice below 0, or not below"),
        (CONTINUOUS, "column actions", np.inf, "column actions: not finite"),
        (CONTINUOUS, "column rewards", np.nan, "column rewards: not finite"),
        (CONTINUOUS, "column observations", -np.inf, "column observations: not finite"),
        (CONTINUOUS, "index", np.float64, "index: int64, not float64"),
        (CONTINUOUS, "terminated", lambda a: a[:-1], "terminated: shape"),
        (CONTINUOUS, "lengths", np.zeros_like, "lengths: an episode has at least one"),
        (CONTINUOUS, "lengths", lambda a: a + (1 << 61), "lengths: an episode has"),
        (CONTINUOUS, "lengths", None, "lengths: missing"),
        (CONTINUOUS, "column rewards", None, "rewards: missing"),
        (CONTINUOUS, "column observations", lambda a: a[1:], "observations: shape"),
    ],
)
def test_a_crafted_record_with_a_good_checksum_is_refused_by_name(
    columns, name, change, words, tmp_path
):
    """Whoever alters one can compute checksums, for it and for the checkpoint, too."""
    _, _, places = played(tmp_path, 1, columns)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    header_bytes = len(whole) - struct.unpack_from("<Q", whole, 8)[0]
    header, arrays = packing.unpack(whole[header_bytes:], "replay")
    if change is None:
        del arrays[name]
    elif callable(change):
        arrays[name] = change(arrays[name])
    else:
        arrays[name] = arrays[name].copy()
        arrays[name][-1] = change
    body = packing.pack("replay", header, arrays)
    digest = hashlib.sha256(bytes(32) + body).digest()
    path.write_bytes(struct.pack("<8sQ32s32s", whole[:8], len(body), bytes(32), digest) + body)
    place = places[-1]._replace(end=path.stat().st_size, digest=digest)
    with pytest.raises(ValueError, match=words):
        restored(tmp_path, place, columns)
