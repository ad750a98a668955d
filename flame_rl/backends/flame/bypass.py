"""A session beside the run's own, through which Flame creates executors that nodes away block."""

from __future__ import annotations

from collections.abc import Sequence

import flamepy.core.client
from flamepy.core.types import ResourceRequirement
from flamepy.proto import types_pb2 as pb

from flame_rl.backends.flame.cleanup import Janitor, close_session
from flame_rl.backends.flame.room import batch_past


class Bypass:
    """See `batch_past`. The session has no task; what Flame creates for it goes to the run's."""

    def __init__(self, application: str, janitor: Janitor) -> None:
        self._application = application
        self._janitor = janitor
        self._batch, self._session = 0, "none"

    @property
    def open(self) -> bool:
        return self._batch > 0

    def follow(
        self,
        nodes: Sequence[pb.Node],
        executors: Sequence[pb.Executor],
        claim: pb.ResourceRequirement,
    ) -> None:
        """Have the session that the cluster asks for now, or none. Raises FlameError."""
        batch = batch_past(nodes, executors, claim)
        kept = any(executor.status.session_id == self._session for executor in executors)
        if batch == self._batch and not kept:
            return
        self.close()
        if batch:
            session = flamepy.core.client.create_session(
                self._application,
                min_instances=batch,
                batch_size=batch,
                resreq=ResourceRequirement(claim.cpu, claim.memory, claim.gpu),
            )
            self._janitor.remember("session", session.id)
            self._batch, self._session = batch, session.id

    def close(self) -> None:
        """Close the session, if it is open."""
        if self._batch:
            close_session(self._session)
            self._batch, self._session = 0, "none"
