"""When gradient steps are due, against Reverb's rate limiter, which admits samples and inserts one
by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.off_policy.update import gradient_steps_due
from flame_rl.settings.algorithms import DQNSettings


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


def replay(per_step: float, batch_size: int, warm_up: int) -> DQNSettings:
    return DQNSettings(updates_per_step=per_step, batch_size=batch_size, warm_up_steps=warm_up)


# Eighths are exact in binary.
EIGHTHS = st.integers(1, 40).map(lambda number: number / 8)


@settings(max_examples=100, deadline=None)
@given(EIGHTHS, st.integers(1, 9), st.integers(0, 30), st.data())
def test_as_one_by_one(per_step, batch_size, warm_up, data):
    chosen, per_insert = replay(per_step, batch_size, warm_up), per_step * batch_size
    slow, taken = OneByOne(per_insert, max(1, warm_up), max(per_insert, batch_size)), 0
    for _ in range(10):
        for _ in range(data.draw(st.integers(0, 30))):
            if not slow.insert():
                break
        due = gradient_steps_due(chosen, slow.inserts, taken)
        wanted = data.draw(st.integers(0, due))
        for _ in range(wanted):
            assert slow.sample(batch_size)
        taken += wanted
        assert gradient_steps_due(chosen, slow.inserts, taken) == due - wanted
        if wanted == due:
            assert not slow.sample(batch_size)


def test_a_tenth_is_a_tenth():
    """The binary number nearest to 0.29 is a little less; a hundred of it are 29."""
    assert gradient_steps_due(replay(0.29, 1, 1), 101, 29) == 1
