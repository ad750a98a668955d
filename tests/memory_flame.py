"""Flame's servers in one process, for tests: the same protocols, nothing kept on disk.

An unmodified flamepy 0.6 talks to it, and its executors run the unmodified worker of Flame Runner,
`python -m flamepy.runner.runpy`. What is imitated is Flame v0.6.0's session manager, object cache
and executor manager, as far as a program on Flame Runner meets them, with their rough edges:
an executor whose worker died fails every further task, a session with a running task cannot be
closed, a failed task arrives without its message. Workers find what their application declares as
dependencies and nothing else, but as links to this Python's packages, not downloaded. Session
manager and object cache can be stopped and started again; they forget nothing, as with storage on
disk. The executor manager can be stopped; its node is then away, and tasks run for ever. Nodes can
join, be lost, and be unable to install packages. On one that is away the scheduler of v0.6.0 places
an executor all the same, before all others; it stays void, and is reserved for each session instead
of another. Not imitated: patches in the cache, delays, resources other than cores.
"""
# ruff: noqa: N802 - gRPC names the methods

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import bson
import grpc
import psutil
import pyarrow as pa
import pyarrow.flight as flight
from flamepy.proto import frontend_pb2_grpc, shim_pb2, shim_pb2_grpc
from flamepy.proto import types_pb2 as pb
from packaging.requirements import Requirement

import flame_rl.backends.flame  # noqa: F401 - which says what gRPC does in a fork

_FINISHED = (pb.TaskState.Succeed, pb.TaskState.Failed, pb.TaskState.Cancelled)
_BINDING_ATTEMPTS = 5
# Codes of a session's events.
_BINDING_FAILED = 1001
_GAVE_UP = 1002
# What an executor claims by default.
_CLAIM = pb.ResourceRequirement(cpu=1, memory=1 << 30)
_TEMPLATES = ("flmrun", "flmexec", "flmping")


class ObjectCache(flight.FlightServerBase):
    """Flame's object cache: keys `app/session/id`, a version that every put raises by one.

    `lock` guards all state.
    """

    _RESPONSE = pa.schema([("version", pa.uint64()), ("kind", pa.utf8()), ("data", pa.binary())])

    def __init__(self, port: int, before: ObjectCache | None = None) -> None:
        """With the objects of the one `before`, if there was one."""
        super().__init__(f"grpc://127.0.0.1:{port}")
        self.endpoint = f"grpc://127.0.0.1:{self.port}"
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        # Which of those are Arrow tables, as a stream of Arrow's.
        self._tables: set[str] = set()
        # Of every package ever uploaded, even if it is deleted since, what its files hold by their
        # names; b"" for a folder.
        self.packages: dict[str, dict[str, bytes]] = {}
        self._versions: dict[str, int] = {}
        if before is not None:
            for name in ("objects", "_tables", "packages", "_versions"):
                setattr(self, name, getattr(before, name))

    def do_put(self, context, descriptor, reader, writer) -> None:
        """A prefix gets a new key; a full key is replaced. A file comes in several rows."""
        if not descriptor.path:
            raise flight.FlightServerError("patches are not imitated")
        key = descriptor.path[0].decode()
        if key.count("/") == 1:
            key = f"{key}/{uuid.uuid4()}"
        table = reader.read_all()
        is_table = (table.schema.metadata or {}).get(b"flame.cache.format") == b"arrow-table-v1"
        data = _stream_of(table) if is_table else b"".join(table["data"].to_pylist())
        with self.lock:
            self.objects[key] = data
            (self._tables.add if is_table else self._tables.discard)(key)
            version = self._versions[key] = self._versions.get(key, 0) + 1
            if key.endswith(".tar.gz"):
                with _open_package(data) as package:
                    files = {member.name: package.extractfile(member) for member in package}
                    self.packages.pop(key, None)  # the last comes last
                    self.packages[key] = {n: f.read() if f else b"" for n, f in files.items()}
        answer = {"endpoint": self.endpoint, "key": key, "version": version}
        writer.write(pa.py_buffer(bson.encode(answer)))

    def do_get(self, context, ticket) -> flight.RecordBatchStream:
        """The ticket is `key:version`; no row if that is the version here."""
        key, _, known = ticket.ticket.decode().partition(":")
        with self.lock:
            if key not in self.objects:
                raise KeyError(f"object <{key}> not found")
            data, version, is_table = self.objects[key], self._versions[key], key in self._tables
        if is_table and int(known or 0) != version:
            table = pa.ipc.open_stream(data).read_all()
            metadata = table.schema.metadata | {b"flame.cache.version": str(version).encode()}
            return flight.RecordBatchStream(table.replace_schema_metadata(metadata))
        rows = [] if int(known or 0) == version else [(version, "base", data)]
        columns = [[row[i] for row in rows] for i in range(3)]
        return flight.RecordBatchStream(pa.table(columns, schema=self._RESPONSE))

    def do_action(self, context, action) -> list[bytes]:
        """DELETE of a key, of `app/session` or of `app/*`; deleting nothing is fine too."""
        if action.type != "DELETE":
            raise flight.FlightServerError(f"Unknown action type: {action.type}")
        key = action.body.to_pybytes().decode()
        prefix = key.removesuffix("*") if key.endswith("/*") else key + "/"
        with self.lock:
            for name in [n for n in self.objects if n == key or n.startswith(prefix)]:
                del self.objects[name]
                self._versions.pop(name, None)
                self._tables.discard(name)
        return [b"OK"]

    def list_flights(self, context, criteria) -> Iterator[flight.FlightInfo]:
        with self.lock:
            sizes = {key: len(data) for key, data in self.objects.items()}
        for key, size in sizes.items():
            descriptor = flight.FlightDescriptor.for_path(key)
            yield flight.FlightInfo(self._RESPONSE, descriptor, [], -1, size)


@dataclass
class Task:
    """One task; `events` are seen by GetTask only, as in Flame."""

    session: Session
    message: pb.Task
    events: list[pb.Event] = field(default_factory=list)

    @property
    def state(self) -> int:
        return self.message.status.state


@dataclass
class Session:
    """One session and its tasks, numbered from 1.

    `counts` says how many of them are in each state, by its name: there may be thousands.
    """

    message: pb.Session
    tasks: dict[str, Task] = field(default_factory=dict)
    pending: deque[Task] = field(default_factory=deque)
    # Of executors that are gone; nobody is told that they are pending again.
    queued_again: deque[Task] = field(default_factory=deque)
    counts: Counter[str] = field(default_factory=Counter)
    failed_bindings: int = 0

    @property
    def id(self) -> str:
        return self.message.metadata.id

    @property
    def open(self) -> bool:
        return self.message.status.state == pb.SessionState.Open

    @property
    def batch(self) -> int:
        return max(1, self.message.spec.batch_size)

    def view(self) -> pb.Session:
        """The message with the counts of now."""
        view = pb.Session()
        view.CopyFrom(self.message)
        for state, count in self.counts.items():
            setattr(view.status, state.lower(), count)
        return view


@dataclass
class Node:
    """An executor manager; `broken`: it cannot install packages; `failed`: those that it could not
    install, which it does not try again; `environment` is its workers'."""

    cores: int
    broken: bool = False
    failed: set[str] = field(default_factory=set)
    environment: dict[str, str] = field(default_factory=dict)
    state: int = pb.NodeState.Ready

    @property
    def ready(self) -> bool:
        return self.state == pb.NodeState.Ready

    def view(self, name: str) -> pb.Node:
        room = pb.ResourceRequirement(cpu=self.cores, memory=self.cores << 31)
        status = pb.NodeStatus(state=self.state, capacity=room, allocatable=room)
        metadata = pb.Metadata(id=name, name=name)
        return pb.Node(metadata=metadata, spec=pb.NodeSpec(hostname=name), status=status)


class SessionManager(frontend_pb2_grpc.FrontendServicer):
    """Flame's session manager with the answers of its file-system storage.

    `changed` guards all state and is notified of every change of it.
    """

    def __init__(self, nodes: dict[str, int]) -> None:
        """`nodes`: the number of cores of each."""
        self.changed = threading.Condition(threading.RLock())
        self.applications = {name: self._template(name) for name in _TEMPLATES}
        self.sessions: dict[str, Session] = {}
        self.executors: list[Executor] = []
        # The ports on which clients have asked which executors there are.
        self.asked_from: set[str] = set()
        # How many tasks ended, by state.
        self.finished: Counter[str] = Counter()
        self.stopping = False
        self.nodes = {name: Node(cores) for name, cores in nodes.items()}
        self.on_pending: Callable[[], None] = lambda: None

    # Applications

    def RegisterApplication(self, request, context) -> pb.Result:
        with self.changed:
            if request.name in self.applications:
                return _refused(f"Application '{request.name}' already exists")
            self.applications[request.name] = pb.Application(
                metadata=pb.Metadata(id=request.name, name=request.name),
                spec=request.application,
                status=pb.ApplicationStatus(creation_time=_now()),
            )
        return pb.Result()

    def UnregisterApplication(self, request, context) -> pb.Result:
        """Refused while a session is open; forgets the closed ones."""
        with self.changed:
            if request.name not in self.applications:
                return _refused(f"Failed to delete application '{request.name}': No such file")
            every = self.sessions.values()
            sessions = [s for s in every if s.message.spec.application == request.name]
            if any(session.open for session in sessions):
                return _refused(f"Cannot unregister '{request.name}': has open sessions")
            del self.applications[request.name]
            for session in sessions:
                del self.sessions[session.id]
        return pb.Result()

    def GetApplication(self, request, context) -> pb.Application:
        with self.changed:
            if request.name not in self.applications:
                text = f"Application {request.name} not found"
                context.abort(grpc.StatusCode.NOT_FOUND, text)
            return self.applications[request.name]

    def ListApplication(self, request, context) -> pb.ApplicationList:
        with self.changed:
            return pb.ApplicationList(applications=self.applications.values())

    # Nodes and executors

    def ListNodes(self, request, context) -> pb.NodeList:
        with self.changed:
            return pb.NodeList(nodes=[node.view(name) for name, node in self.nodes.items()])

    def ListExecutor(self, request, context) -> pb.ExecutorList:
        with self.changed:
            self.asked_from.add(context.peer().rpartition(":")[2])
            return pb.ExecutorList(executors=[executor.view() for executor in self.executors])

    # Sessions

    def CreateSession(self, request, context) -> pb.Session:
        with self.changed:
            if request.session.application not in self.applications:
                text = f"Application {request.session.application} not found"
                context.abort(grpc.StatusCode.NOT_FOUND, text)
            metadata = pb.Metadata(id=request.session_id, name=request.session_id)
            status = pb.SessionStatus(creation_time=_now())
            session = Session(pb.Session(metadata=metadata, spec=request.session, status=status))
            if not session.message.spec.HasField("resreq"):
                session.message.spec.resreq.CopyFrom(_CLAIM)
            self.sessions[session.id] = session
            self.on_pending()
            return session.view()

    def OpenSession(self, request, context) -> pb.Session:
        """The session of that name, or a new one if the request says what kind."""
        with self.changed:
            if request.session_id not in self.sessions and request.HasField("session"):
                return self.CreateSession(request, context)
            session = self._session(request.session_id, context)
            if not session.open:
                text = f"Session {session.id} is not open"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
            return session.view()

    def CloseSession(self, request, context) -> pb.Session:
        """Refused while a task runs; pending ones are cancelled."""
        with self.changed:
            session = self._session(request.session_id, context)
            if session.counts["Running"]:
                text = "Cannot close session with running tasks"
                context.abort(grpc.StatusCode.INTERNAL, text)
            session.pending.extend(session.queued_again)
            session.queued_again.clear()
            while session.pending:
                self._set_state(session.pending.popleft(), pb.TaskState.Cancelled)
            session.message.status.state = pb.SessionState.Closed
            session.message.status.completion_time = _now()
            self.changed.notify_all()
            return session.view()

    def GetSession(self, request, context) -> pb.Session:
        with self.changed:
            return self._session(request.session_id, context).view()

    def ListSession(self, request, context) -> pb.SessionList:
        with self.changed:
            return pb.SessionList(sessions=[session.view() for session in self.sessions.values()])

    # Tasks

    def CreateTask(self, request, context) -> pb.Task:
        with self.changed:
            session = self._session(request.task.session_id, context)
            if not session.open:
                text = "Cannot create task in closed session"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
            name = str(len(session.tasks) + 1)
            metadata = pb.Metadata(id=name, name=name)
            task = Task(session, pb.Task(metadata=metadata, spec=request.task))
            task.message.status.creation_time = _now()
            session.tasks[name] = task
            session.pending.extend(session.queued_again)
            session.queued_again.clear()
            session.pending.append(task)
            session.counts["Pending"] += 1
            self._set_state(task, pb.TaskState.Pending)
            self.on_pending()
            return _copy(task.message)

    def GetTask(self, request, context) -> pb.Task:
        with self.changed:
            task = self._session(request.session_id, context).tasks.get(request.task_id)
            if task is None:
                context.abort(grpc.StatusCode.NOT_FOUND, request.task_id)
            message = _copy(task.message)
            message.status.events.extend(task.events)
            return message

    def WatchTask(self, request, context) -> Iterator[pb.Task]:
        """Every change of state from now on, without events; at once if it is finished.

        Of a task that does not exist nothing is said: the stream just ends.
        """
        context.add_callback(self.notify)  # a client that is gone need not be waited for
        with self.changed:
            session = self.sessions.get(request.session_id)
            task = session.tasks.get(request.task_id) if session else None
            seen = task.state if task else None
        while seen is not None:
            with self.changed:
                while task.state == seen and seen not in _FINISHED:
                    if self.stopping or not context.is_active():
                        context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed")
                    self.changed.wait()
                message = _copy(task.message)
            yield message
            seen = None if message.status.state in _FINISHED else message.status.state

    # For the executors

    def next_task(self, executor: Executor) -> Task | None:
        """Wait for a pending task and set it running; None once the session is closed or the
        executor's node away."""
        session, node = executor.session, self.nodes[executor.node]
        with self.changed:
            while session.open and node.ready and not self.stopping:
                if session.pending:
                    task = session.pending.popleft()
                    self._set_state(task, pb.TaskState.Running)
                    return task
                self.changed.wait()
        return None

    def queue_again(self, task: Task) -> None:
        """A task whose executor is gone."""
        with self.changed:
            if task.session.open and task.state == pb.TaskState.Running:
                self._set_state(task, pb.TaskState.Pending)
                task.session.queued_again.append(task)

    def finish(
        self, task: Task, state: int, message: str = "", output: bytes | None = None
    ) -> None:
        with self.changed:
            if output is not None:
                task.message.spec.output = output
            task.message.status.completion_time = _now()
            self._set_state(task, state, message)
            self.finished[pb.TaskState.Name(state)] += 1

    def binding_failed(
        self, session: Session, executor: str, reason: str, node: str = "memory"
    ) -> None:
        """Tried five times; the client's tasks stay pending and only the session's events tell."""
        with self.changed:
            session.failed_bindings += 1
            events = session.message.status.events
            where = f"Executor <{executor}> on node <{node}>"
            message = f"{where} failed to bind session with return_code <1>: {reason}"
            events.append(_event(_BINDING_FAILED, message))
            if session.failed_bindings == _BINDING_ATTEMPTS:
                message = "Session retry limit reached after 5/5 failed attempts"
                events.append(_event(_GAVE_UP, message))

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _set_state(self, task: Task, state: int, message: str = "") -> None:
        counts = task.session.counts
        counts[pb.TaskState.Name(task.state)] -= 1
        counts[pb.TaskState.Name(state)] += 1
        task.message.status.state = state
        task.events.append(_event(state, message))
        self.changed.notify_all()

    def _session(self, name: str, context: grpc.ServicerContext) -> Session:
        if name not in self.sessions:
            context.abort(grpc.StatusCode.NOT_FOUND, name)
        return self.sessions[name]

    @staticmethod
    def _template(name: str) -> pb.Application:
        spec = pb.ApplicationSpec(max_instances=1_000_000, delay_release=60, installer="python")
        return pb.Application(metadata=pb.Metadata(id=name, name=name), spec=spec)


class Executor(threading.Thread):
    """One executor: bound to a session until that closes, with a worker process of its own. One
    that is not started is void."""

    def __init__(
        self, flame: MemoryFlame, node: str, session: Session, application: pb.Application
    ) -> None:
        super().__init__(daemon=True)
        self.id = str(uuid.uuid4())
        self.state = pb.ExecutorState.ExecutorVoid
        self.node = node
        self.session = session
        self.task: Task | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self._flame = flame
        self._application = application
        self._folder = flame.folder / "executors" / self.id[:8]
        self._socket = flame.folder / f"{self.id}.sock"
        # Of several replicas it puts its results into one.
        self._cache = flame.caches[flame.placed % len(flame.caches)].endpoint

    def view(self) -> pb.Executor:
        metadata = pb.Metadata(id=self.id, name=self.id)
        spec = pb.ExecutorSpec(node=self.node, resreq=_CLAIM)
        session = None if self.void else self.session.id
        status = pb.ExecutorStatus(state=self.state, session_id=session)
        return pb.Executor(metadata=metadata, spec=spec, status=status)

    def start(self) -> None:
        self.state = pb.ExecutorState.ExecutorBinding
        super().start()

    @property
    def void(self) -> bool:
        return self.state == pb.ExecutorState.ExecutorVoid

    def run(self) -> None:
        manager = self._flame.manager
        node = manager.nodes[self.node]
        with grpc.insecure_channel(f"unix:{self._socket}") as channel:
            worker = shim_pb2_grpc.InstanceStub(channel)
            try:
                self._bind(worker, channel)
            except Exception as error:
                self._end_worker()
                reason = f"{type(error).__name__}: {error}"
                manager.binding_failed(self.session, self.id, reason, self.node)
                self._flame.release(self)
                return
            self.state = pb.ExecutorState.ExecutorBound
            while (task := manager.next_task(self)) is not None:
                self.task = task
                self._invoke(worker, task)
                if self._lost(node):
                    return
                self.task = None
            if self._lost(node):
                return
            self.state = pb.ExecutorState.ExecutorUnbinding
            try:
                worker.OnSessionLeave(pb.EmptyRequest())
            except grpc.RpcError:
                return  # as in Flame: it unbinds for ever, and its slot is lost
            finally:
                self._end_worker()
        self._flame.release(self)

    def _lost(self, node: Node) -> bool:
        """Whether its node is away, or was, so that Flame has given it up."""
        return not node.ready or self not in self._flame.manager.executors

    def _bind(self, worker: shim_pb2_grpc.InstanceStub, channel: grpc.Channel) -> None:
        """Install the application, start the worker and let it enter the session."""
        with self._flame.manager.changed:
            if self._flame.unbindable:
                self._flame.unbindable -= 1
                raise RuntimeError("failed to connect to service: transport error")
            node, name = self._flame.manager.nodes[self.node], self._application.metadata.name
            if node.broken:
                node.failed.add(name)
            if name in node.failed:
                raise RuntimeError("failed to install the package")
        self._start_worker(self._flame.install(self._application))
        ready = grpc.channel_ready_future(channel)
        while not ready.done():
            if self.worker.poll() is not None:
                raise RuntimeError(f"the worker ended:\n{(self._folder / 'log').read_text()}")
            with contextlib.suppress(grpc.FutureTimeoutError):
                ready.result(timeout=0.2)
        spec = self._application.spec
        application = shim_pb2.ApplicationContext(name=self._application.metadata.name)
        application.url = spec.url
        context = shim_pb2.SessionContext(session_id=self.session.id, application=application)
        context.common_data = self.session.message.spec.common_data
        result = worker.OnSessionEnter(context)
        if result.return_code != 0:
            raise RuntimeError(f"on_session_enter failed: {result.message}")

    def _start_worker(self, source: Path) -> None:
        """In a folder and a process group of its own, as Flame does; HOME leads nowhere, so that
        no ~/.flame of the machine is read."""
        (self._folder / "tmp").mkdir(parents=True)
        path = [*self._flame.worker_path, self._flame.unused, source.with_name("deps"), source]
        own = ("FLAME", "PYTHON")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        environment |= self._flame.environment | {
            **self._flame.manager.nodes[self.node].environment,
            "FLAME_CACHE_ENDPOINT": self._cache,
            "FLAME_INSTANCE_ENDPOINT": str(self._socket),
            "HOME": str(self._folder),
            "TMPDIR": str(self._folder / "tmp"),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
        }
        with self._flame.manager.changed, (self._folder / "log").open("wb") as log:
            if self._flame.manager.stopping:
                raise RuntimeError("the cluster is being shut down")
            self.worker = subprocess.Popen(
                # Not the virtual environment's, and without its own packages.
                [sys._base_executable, "-S", "-m", "flamepy.runner.runpy"],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
            self._flame.started_workers.append(self.worker.pid)
            self._flame.workers_of[self.node].append(self.worker)

    def _invoke(self, worker: shim_pb2_grpc.InstanceStub, task: Task) -> None:
        """Once the worker is dead every call fails at once: the executor is a black hole."""
        context = shim_pb2.TaskContext(
            task_id=task.message.metadata.id,
            session_id=self.session.id,
            input=task.message.spec.input,
        )
        try:
            result = worker.OnTaskInvoke(context)
        except grpc.RpcError as error:
            if not self._lost(self._flame.manager.nodes[self.node]):
                self._flame.manager.finish(task, pb.TaskState.Failed, error.details())
            return  # or nobody tells the session manager
        if self._lost(self._flame.manager.nodes[self.node]):
            return
        if result.return_code != 0:
            self._flame.manager.finish(task, pb.TaskState.Failed, result.message)
        else:
            self._flame.on_result(bson.decode(result.output)["key"])
            self._flame.manager.finish(task, pb.TaskState.Succeed, output=result.output)

    def _end_worker(self) -> None:
        """SIGTERM to the group, which its own children in other groups do not get."""
        if self.worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.worker.pid, signal.SIGTERM)
            self.worker.wait()


class MemoryFlame:
    """A Flame cluster on free ports of 127.0.0.1, for the length of a `with` block.

    Attributes:
        environment: what a program needs to find it.
        manager, caches: its servers with all their state.
        started_workers: the process ids of all workers ever started.
        workers_of: all workers ever started, by the name of their node.
        unbindable: how many of the next executors cannot be bound to their session.
        on_result: called with the key of every task's result before the client hears of it; may
            take its time and change what the cache holds.
    """

    def __init__(
        self,
        executors: int = 2,
        worker_path: list[Path] | None = None,
        nodes: dict[str, int] | None = None,
        caches: int = 1,
    ) -> None:
        """Workers find modules in `worker_path` before all others. `nodes` are the cores of each;
        by default one, `memory`, has room for all `executors`, which start when tasks are pending.
        Clients know the first of the `caches`, replicas of the object cache."""
        self._replicas = caches
        self.worker_path = worker_path or []
        self.manager = SessionManager({"memory": executors} if nodes is None else nodes)
        self.started_workers: list[int] = []
        self.workers_of: defaultdict[str, list[subprocess.Popen[bytes]]] = defaultdict(list)
        self.unbindable = 0
        self.on_result: Callable[[str], None] = lambda key: None
        self.placed = 0
        self._installing = threading.Lock()

    def __enter__(self) -> MemoryFlame:
        self.folder = Path(tempfile.mkdtemp(prefix="memory-flame-"))
        # What flamepy imports for services that nobody asks for takes half of an executor's start.
        self.unused = self.folder / "unused"
        self.unused.mkdir()
        (self.unused / "fastapi.py").write_text("FastAPI = Request = Response = None")
        (self.unused / "uvicorn.py").touch()
        self._port, cache_port = free_ports()
        self.caches = [ObjectCache(port) for port in (cache_port, *[0] * (self._replicas - 1))]
        self.manager.on_pending = self._schedule
        self.start("session-manager")
        self.environment = {
            "FLAME_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "FLAME_CACHE_ENDPOINT": self.cache.endpoint,
        }
        return self

    def stop(self, server: str) -> None:
        """End the `session-manager`, which breaks every watch, or the `object-cache`. Tasks that
        run go on. Or, for good, the `executor-manager` with all that runs."""
        if server == "executor-manager":
            for name in self.manager.nodes:
                self.lose_node(name)
        elif server == "session-manager":
            self._server.stop(grace=None).wait()
        else:
            self.cache.shutdown()

    def start(self, server: str) -> None:
        """Serve again, at the same address, with all that was there."""
        if server == "object-cache":
            self.caches[0] = ObjectCache(self.cache.port, self.cache)
            return
        # A thread for each watched task, of which a client watches ten at a time.
        own = [("grpc.so_reuseport", 0)]  # no other process may serve the same port
        self._server = grpc.server(ThreadPoolExecutor(max_workers=128), options=own)
        frontend_pb2_grpc.add_FrontendServicer_to_server(self.manager, self._server)
        self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self._server.start()

    def add_node(self, name: str, cores: int) -> None:
        """A node joins, or comes back under its name."""
        with self.manager.changed:
            self.manager.nodes[name] = Node(cores)
            for executor in [e for e in self.manager.executors if e.void and e.node == name]:
                self.manager.executors.remove(executor)
            self._schedule()

    def lose_node(self, name: str) -> None:
        """All that runs there ends, and nobody tells the session manager."""
        self._set_state(name, pb.NodeState.Unknown)
        for worker in [e.worker for e in self.manager.executors if e.node == name and e.worker]:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()

    def _set_state(self, name: str, state: int) -> None:
        with self.manager.changed:
            self.manager.nodes[name].state = state
            self.manager.changed.notify_all()

    def knows_itself(self, worker: subprocess.Popen[bytes]) -> bool:
        """Whether the executor has been told which executors there are."""
        sockets = psutil.Process(worker.pid).net_connections("tcp")
        return any(str(socket.laddr.port) in self.manager.asked_from for socket in sockets)

    def pause_node(self, name: str) -> None:
        """It is away, and nothing there runs for the time being."""
        self._signal(name, signal.SIGSTOP)
        self._set_state(name, pb.NodeState.Unknown)

    def resume_node(self, name: str) -> None:
        """What was paused goes on, and the node is ready."""
        self._set_state(name, pb.NodeState.Ready)
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: int) -> None:
        """To all that runs on the node."""
        for worker in self.workers_of[name]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if worker.poll() is None:
                    leader = psutil.Process(worker.pid)
                    for process in [leader, *leader.children(recursive=True)]:
                        process.send_signal(number)

    def give_up_node(self, name: str) -> None:
        """As Flame does with a lost one after half a minute: it forgets what was there. Whatever
        runs there still is not ended."""
        with self.manager.changed:
            self.manager.nodes[name].state = pb.NodeState.NotReady
            for executor in [e for e in self.manager.executors if e.node == name]:
                self.manager.executors.remove(executor)
                if executor.task is not None:
                    self.manager.queue_again(executor.task)
            self._schedule()

    def __exit__(self, *exception: object) -> None:
        """End every process and thread and remove every file."""
        with self.manager.changed:
            self.manager.stopping = True
            self.manager.changed.notify_all()
            executors = list(self.manager.executors)
        for name in list(self.workers_of):
            self._signal(name, signal.SIGKILL)
        for executor in executors:
            if not executor.void:
                executor.join()
        self._server.stop(grace=1).wait()
        for cache in self.caches:
            cache.shutdown()
        shutil.rmtree(self.folder)

    @property
    def cache(self) -> ObjectCache:
        """The one that clients know."""
        return self.caches[0]

    @property
    def applications(self) -> list[str]:
        """Names, without the templates that every cluster has."""
        with self.manager.changed:
            return [name for name in self.manager.applications if name not in _TEMPLATES]

    @property
    def sessions(self) -> dict[str, Session]:
        with self.manager.changed:
            return dict(self.manager.sessions)

    @property
    def objects(self) -> dict[str, bytes]:
        return {name: data for cache in self.caches for name, data in cache.objects.items()}

    def worker_pids(self) -> list[int]:
        """The workers that run now."""
        with self.manager.changed:
            workers = [executor.worker for executor in self.manager.executors]
        return [worker.pid for worker in workers if worker and worker.poll() is None]

    def install(self, application: pb.Application) -> Path:
        """Unpack the application's package and provide what it depends on, once."""
        source = self.folder / "apps" / application.metadata.name / "src"
        with self._installing:
            if not source.exists():
                package = self.cache.objects[urlparse(application.spec.url).path.lstrip("/")]
                _open_package(package).extractall(source, filter="data")
                try:
                    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
                    # Flame brings flamepy itself.
                    link_packages([*project["dependencies"], "flamepy"], source.with_name("deps"))
                except Exception:
                    shutil.rmtree(source.parent)  # to be tried again
                    raise
        return source

    def release(self, executor: Executor) -> None:
        """Its slot is free for whoever waits."""
        with self.manager.changed:
            if executor in self.manager.executors:
                self.manager.executors.remove(executor)
            self._schedule()

    def _schedule(self) -> None:
        """Start an executor for each unfinished task that has none, while there is room."""
        with self.manager.changed:
            sessions = [
                s
                for s in self.manager.sessions.values()
                if s.open and s.failed_bindings < _BINDING_ATTEMPTS
            ]
            for session in sessions:
                if session.batch == 1:
                    # A void executor is reserved instead of creating another.
                    while self._wants(session) and not self._voids() and self._place(session):
                        pass
            needy = [session for session in sessions if session.batch == 1]
            for session in sessions:
                if session.batch > 1:
                    self._create_batches(session.batch, needy)

    def _wants(self, session: Session) -> bool:
        """As many as there are tasks, within what the session asks for."""
        bound = sum(e.session is session and not e.void for e in self.manager.executors)
        spec, tasks = session.message.spec, session.counts["Pending"] + session.counts["Running"]
        most = spec.max_instances if spec.HasField("max_instances") else tasks
        return min(most, max(spec.min_instances, tasks)) > bound

    def _voids(self) -> int:
        return sum(executor.void for executor in self.manager.executors)

    def _create_batches(self, batch: int, sessions: list[Session]) -> None:
        """Whole ones, to which void executors count but for the one that is reserved for another
        session; that one gets those that can start."""
        while needy := [session for session in sessions if self._wants(session)]:
            free = sum(self._free(name) for name in self.manager.nodes)
            new = batch - max(0, self._voids() - 1)
            if not 0 < new <= free:
                return
            for _ in range(new):
                self._place(needy[0])

    def _free(self, name: str) -> int:
        taken = sum(executor.node == name for executor in self.manager.executors)
        return self.manager.nodes[name].cores - taken

    def _place(self, session: Session) -> bool:
        """An executor for the session, on a node with room: one that is away, if there is one, as
        Flame sees no difference; else in turn. Returns whether there was room."""
        free = [name for name in self.manager.nodes if self._free(name) > 0]
        free = [name for name in free if not self.manager.nodes[name].ready] or free
        if not free or self.manager.stopping:
            return False
        self.placed += 1
        node = free[self.placed % len(free)]
        application = self.manager.applications[session.message.spec.application]
        executor = Executor(self, node, session, application)
        self.manager.executors.append(executor)
        if self.manager.nodes[node].ready:
            executor.start()
        return True


def free_ports() -> tuple[int, int]:
    """One whose next is free too, as the session manager takes both, and another.

    Below those that the system gives to clients: one that tries again and again to reach a server
    that is away would in the end get the server's own port, and the server could not come back.
    """
    while True:
        first, other = random.sample(range(20_000, 32_000, 2), 2)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in (first, first + 1, other):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first, other


def link_packages(requirements: list[str], folder: Path) -> None:
    """What `uv pip install --target` would put there, with all that it depends on in turn."""
    folder.mkdir()
    waiting = [Requirement(text) for text in requirements]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        package = importlib.metadata.distribution(wanted.name)
        if not wanted.specifier.contains(package.version):
            raise RuntimeError(f"{wanted} is required, but {package.version} is installed here")
        for needed in map(Requirement, package.requires or []):
            extras = ("", *wanted.extras)
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
        for name in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(package.locate_file(name))


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _open_package(data: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(data))


def _refused(message: str) -> pb.Result:
    return pb.Result(return_code=-1, message=message)


def _copy(message: pb.Task) -> pb.Task:
    """Frozen as it is now: an answer is serialized after the lock is released."""
    copy = pb.Task()
    copy.CopyFrom(message)
    return copy


def _event(code: int, message: str) -> pb.Event:
    return pb.Event(code=code, message=message, creation_time=_now())


def _now() -> int:
    return int(time.time() * 1000)
