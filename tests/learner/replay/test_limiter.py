"""The rate limiter against Reverb's, which admits samples and inserts one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.off_policy.replay.limiter import RateLimiter


class OneByOne:
    """Reverb's rules: an insert or a sample is admitted if the difference stays within bounds."""

    def __init__(self, samples_per_insert, min_size_to_sample, error_buffer):
        middle = samples_per_insert * min_size_to_sample
        self.low, self.high = middle - error_buffer, middle + error_buffer
        self.per_insert, self.min_size = samples_per_insert, min_size_to_sample
        self.inserts = self.samples = 0

    def sample(self, count):
        """A gradient step's samples: all or none."""
        difference = self.inserts * self.per_insert - self.samples
        if self.inserts < self.min_size or difference - count < self.low:
            return False
        self.samples += count
        return True

    def insert(self):
        difference = self.inserts * self.per_insert - self.samples
        if self.inserts >= self.min_size and difference + self.per_insert > self.high:
            return False
        self.inserts += 1
        return True


# Eighths are exact in binary.
EIGHTHS = st.integers(1, 40).map(lambda number: number / 8)


@settings(max_examples=200, deadline=None)
@given(EIGHTHS, st.integers(1, 9), st.integers(1, 30), st.integers(0, 50), st.data())
def test_as_one_by_one(per_insert, batch_size, min_size, more, data):
    error_buffer = max(per_insert, batch_size) + more
    limiter = RateLimiter(per_insert, batch_size, min_size, error_buffer)
    slow, taken = OneByOne(per_insert, min_size, error_buffer), 0
    for _ in range(10):
        for _ in range(data.draw(st.integers(0, 30))):
            if not slow.insert():
                break
        due = limiter.gradient_steps(slow.inserts, taken)
        wanted = data.draw(st.integers(0, due))
        for _ in range(wanted):
            assert slow.sample(batch_size)
        taken += wanted
        assert limiter.gradient_steps(slow.inserts, taken) == due - wanted
        if wanted == due:
            assert not slow.sample(batch_size)


def test_nothing_is_sampled_before_the_warm_up_however_great_the_buffer():
    limiter = RateLimiter(1, 1, 100, 1000)
    assert limiter.gradient_steps(99, 0) == 0
    assert limiter.gradient_steps(100, 0) == 1000


def test_a_gradient_step_for_each_env_step_after_the_warm_up():
    """As in SAC, with episodes of 1000 steps and a warm-up of 10,000."""
    limiter = RateLimiter(256, 256, 10_000, 256)
    taken, counts = 0, []
    for inserted in range(1000, 20_001, 1000):
        counts.append(limiter.gradient_steps(inserted, taken))
        taken += counts[-1]
    assert counts == [0] * 9 + [1] + [1000] * 10


def test_a_tenth_is_a_tenth():
    """The binary number nearest to 0.29 is a little less; a hundred of it are 29."""
    limiter = RateLimiter(0.29, 1, 1, 1.0)
    assert limiter.gradient_steps(101, 29) == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, 1, 1, 1), "samples_per_insert"),
        ((float("nan"), 1, 1, 1), "samples_per_insert"),
        ((1, 0, 1, 1), "batch_size"),
        ((1, 1, 0, 1), "min_size_to_sample"),
        ((1, 32, 1, 31), "error_buffer"),
        ((33, 32, 1, 32), "error_buffer"),
        ((1, 1, 1, float("inf")), "error_buffer"),
    ],
)
def test_what_could_never_go_on_is_refused(arguments, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        RateLimiter(*arguments)
