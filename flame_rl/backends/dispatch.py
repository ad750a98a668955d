"""Split a request into tasks, keep workers busy, check answers, retry failed tasks: what all
backends share; each supplies a `Transport`."""

import contextlib
import itertools
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from threading import Event

from flame_rl.actor.environments.making import known_here_alone
from flame_rl.actor.randomness import seed_of
from flame_rl.actor.worker.supervisor import SupervisedWorker
from flame_rl.backends.tasks import Task, Tasks, TaskSizes
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.wire import codec, messages
from flame_rl.wire.packing import Buffer

MAX_ATTEMPTS = 3
MAX_DEATHS = 10  # workers that die one after another before they begin to play
STOP_POLL_SECONDS = 0.1


class Listener:
    """Receives what a person should know while episodes are awaited; this one tells nobody."""

    def say(self, text: str) -> None:
        """Something happened."""

    def waiting(self, text: str) -> None:
        """What the run waits for now; "" once it waits no longer."""

    def collecting(self, request: messages.CollectRequest, episodes: int, env_steps: int) -> None:
        """Episodes and env steps of the request that have been played so far; called a few times
        a second by the collecting thread. Each of several agents has an episode of its own."""


def tell(method: Callable[..., None], *what: object) -> None:
    """Call this method of a listener, whose failure ends no run."""
    with contextlib.suppress(Exception):
        method(*what)


@dataclass(frozen=True)
class Collected:
    """The episodes of one iteration, sorted by index, and what it took to get them."""

    episodes: messages.Episodes
    bytes_out: int  # to the workers
    bytes_in: int
    waiting: float  # the time in which the learner's process only waited for episodes
    seconds: float  # from the first task sent to the last answer received
    retries: int  # failed tasks, which were sent again
    dropped: int = 0  # answers that came when nobody waited for them any more
    # The seconds in which the learner's loop waited; fewer where it had collecting begun before.
    collecting: float = 0.0


@dataclass(frozen=True)
class Transport:
    """How tasks reach the workers of a backend."""

    # Sends an encoded request for a number of episodes: the future of the encoded answer.
    submit: Callable[[bytes, int], Future[Buffer]]
    in_flight: int  # the most tasks that are sent and not yet answered
    # Called repeatedly while answers are awaited; may raise.
    check: Callable[[], None] = lambda: None
    # Called when a task failed on its way, which then is no attempt; None if every failure counts.
    failed: Callable[[messages.CollectFailure], None] | None = None
    # The episodes and env steps that workers are known to have played of the tasks in flight.
    played: Callable[[], tuple[int, int]] = lambda: (0, 0)
    # What to add where a worker cannot make the environment, which was made once to be described.
    unusable: str = ""


def gather(
    request: messages.CollectRequest,
    transport: Transport,
    sizes: TaskSizes,
    stop: Event,
    listener: Listener,
) -> Collected:
    """Collect what `request` wants, in tasks of several episodes; the split changes no result.

    The episodes of a failed task are asked for again, one by one; `MAX_ATTEMPTS` failures of an
    episode that counts end the run. Near the end, what is late is asked for twice, and the first
    answer counts: the futures of tasks that are still in flight afterwards are cancelled.

    `sizes` splits the request and notes how long it took; `stop` ends the wait. Raises as
    `Backend.collect` does; tasks may then still be in flight."""
    started = time.perf_counter()
    agents = request.agents
    # Who plays a fragment is to get the next one, too.
    split = sizes.split(len(request.indices), evenly=request.fragment_steps is not None)
    tasks = Tasks(request, split, sizes.workers, transport.in_flight)
    running: dict[Future[Buffer], Task] = {}
    answers: list[messages.Episodes] = []
    episodes = steps = bytes_out = bytes_in = retries = deaths = 0
    waiting = 0.0
    while (wanted := tasks.wanted) is None:
        while (task := tasks.next(time.perf_counter())) is not None:
            data = codec.encode_request(task.request)
            bytes_out += len(data)
            future = transport.submit(data, len(task.request.indices))
            running[future] = task
            if future.done():  # perhaps refused: look before sending more
                break
        began = time.perf_counter()
        done, _ = wait(running, timeout=STOP_POLL_SECONDS, return_when=FIRST_COMPLETED)
        now = time.perf_counter()
        waiting += now - began
        if stop.is_set():
            raise Interrupted
        transport.check()
        for future in done:
            task = running.pop(future)
            answer, size = _read_answer(future, task.request)
            bytes_in += size
            if isinstance(answer, messages.Episodes):
                lengths = answer.lengths.reshape(-1, agents).sum(axis=1)
                for run in tasks.answered(task, now, lengths):
                    answers.append(answer.between(run.start * agents, run.stop * agents))
                    episodes += len(answers[-1])
                    steps += answers[-1].steps
                deaths = 0
                continue
            retries += 1
            missing = tasks.failed(task, now)
            again = [replace(task, request=replace(task.request, indices=missing))]
            # The first two are not the episodes' doing.
            if answer.kind == "start":
                deaths += 1
                _end_after_deaths(deaths, answer)
            elif transport.failed is not None and answer.kind in ("transport", "stale"):
                transport.failed(answer)
            elif task.attempt == MAX_ATTEMPTS and missing and tasks.put_off(task):
                continue
            else:
                again = _one_by_one(task, missing, answer, transport.unusable)
            if missing:
                # Next in line, so that an environment that always fails soon ends the run.
                tasks.put_first(again)
        more_episodes, more_steps = transport.played()
        tell(listener.collecting, request, episodes + more_episodes, steps + more_steps)
    for future in running:
        future.cancel()
    seconds = time.perf_counter() - started
    sizes.note(episodes // agents, seconds, tasks.paces)
    # Each answer holds consecutive episodes of the request.
    answers.sort(key=lambda answer: answer.index[0])
    collected = messages.concatenate(answers).between(0, wanted * agents)
    return Collected(collected, bytes_out, bytes_in, waiting, seconds, retries)


def _one_by_one(
    task: Task, missing: tuple[int, ...], failure: messages.CollectFailure, unusable: str
) -> list[Task]:
    """A task for each missing episode of a failed one, so that a bad episode is found. Raises
    UsageError or RunError if no attempt is left, or another one would fail alike."""
    if failure.kind == "environment":
        error = UsageError(str(failure))
        if unusable:
            error.add_note(unusable)
        raise error
    # Only what happens while an episode is played alone counts against it.
    attempts = task.attempt if len(task.request.indices) == 1 else 0
    if attempts < MAX_ATTEMPTS or not missing:
        return [Task(replace(task.request, indices=(index,)), attempts + 1) for index in missing]
    (index,) = task.request.indices
    request, training = task.request, task.request.stream == "training"
    seed = seed_of(request, index)
    named = replace(failure, iteration=request.iteration, index=index, seed=seed)
    if failure.kind == "invalid":
        raise UsageError(str(named))
    raise RunError(
        f"an{'' if training else ' evaluation'} episode failed in {task.attempt} attempts: {named}",
        index if training else None,
    )


def describe_by(
    worker: SupervisedWorker, environment: messages.Environment, deadline: float, stop: Event
) -> messages.EnvironmentSpec:
    """The environment's description by a worker, within `deadline` seconds. Raises as
    `Backend.describe` does, RunError if the worker dies each time, and Interrupted."""
    for deaths in itertools.count(1):
        data = worker.describe(environment, deadline, stop.is_set)
        answer = codec.decode_description(data, environment.env_id)
        if stop.is_set():
            raise Interrupted
        if not isinstance(answer, messages.CollectFailure):
            return answer
        if answer.kind != "start":
            raise UsageError(f"{answer}{known_here_alone(answer)}")
        _end_after_deaths(deaths, answer)


def _end_after_deaths(deaths: int, failure: messages.CollectFailure) -> None:
    """Raise RunError after too many deaths of workers, one after another, before they played."""
    if deaths >= MAX_DEATHS:
        raise RunError(
            f"{deaths} worker processes, one after another, died before they began to play; memory "
            f"may have run out (fewer --workers): {failure}"
        )


def _read_answer(
    future: Future[Buffer], request: messages.CollectRequest
) -> tuple[messages.Episodes | messages.CollectFailure, int]:
    """The decoded answer and its bytes. Whatever is raised fails this task alone."""
    kind = "transport"
    try:
        data = future.result()
        kind = "garbled"
        return codec.decode_result(data, request), len(data)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        env_id = request.environment.env_id
        return messages.CollectFailure(kind, message, env_id, iteration=request.iteration), 0
