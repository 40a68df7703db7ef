"""The scheduler's two calls: frames in become events, what gathers in an outbox becomes frames out."""

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceServicer
from headrace.chassis.outbox import Outbox, joined
from headrace.chassis.telemetry import from_frame
from headrace.core.errors import InvalidRequest
from headrace.scheduler.codec import to_enlisted, to_refusal, to_reported, to_request, to_response
from headrace.scheduler.dispatch import Answer, Gateways
from headrace.scheduler.membership import Members
from headrace.scheduler.policy.events import Occurrence, Submitted, Withdrawn
from headrace.scheduler.tracing import QueueSpans


class SchedulerService(SchedulerServiceServicer):
    """Handlers write through their context, so that reading and writing end with the call, in its own task."""

    def __init__(
        self, post: Callable[[Occurrence], None], gateways: Gateways, members: Members, spans: QueueSpans
    ) -> None:
        self._post = post
        self._gateways = gateways
        self._members = members
        self._spans = spans
        self._serials = itertools.count(1)

    async def Submit(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        first = await anext(request_iterator, pb.SubmitRequest())
        with self._gateways.connected(first.gateway_id) as outbox:
            reading = self._read_submissions(first, request_iterator, outbox)
            await outbox.exchange(reading, lambda answers: context.write(to_response(answers)))

    async def Enlist(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        first = await anext(request_iterator, pb.EnlistRequest())
        if not first.HasField("enlistment"):
            raise InvalidRequest("the first frame is no enlistment", field="enlistment", limit="first frame")
        event = to_enlisted(first.enlistment)
        with self._members.enlisted(event) as outbox:
            reading = self._read_reports(event.executor_id, request_iterator)
            await outbox.exchange(reading, lambda responses: context.write(joined(responses)))

    async def _read_submissions(
        self, first: pb.SubmitRequest, rest: AsyncIterator[pb.SubmitRequest], outbox: Outbox[Answer]
    ) -> None:
        gateway_id = first.gateway_id
        self._take_in(first, gateway_id, outbox)
        async for frame in rest:
            self._take_in(frame, gateway_id, outbox)

    def _take_in(self, frame: pb.SubmitRequest, gateway_id: str, outbox: Outbox[Answer]) -> None:
        for submission in frame.submissions:
            request = to_request(submission, gateway_id, next(self._serials))
            if isinstance(request, InvalidRequest):
                outbox.put(to_refusal(submission.request_id, request))
            else:
                self._spans.begin(request, from_frame(submission.trace))
                self._post(Submitted(request))
        for request_id in frame.cancelled_request_ids:
            self._post(Withdrawn(gateway_id, request_id))

    async def _read_reports(self, executor_id: str, frames: AsyncIterator[pb.EnlistRequest]) -> None:
        async for frame in frames:
            if not frame.HasField("report"):
                raise InvalidRequest(
                    "a frame after the first is no report", field="report", limit="after the first frame"
                )
            self._post(to_reported(executor_id, frame.report))
