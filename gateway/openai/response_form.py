"""Responses as objects, and as the events of a stream. Pure: an event's number depends on the answer's pieces only, so
that a reader who has lost its stream goes on where it was, at any gateway.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.types.v1.types_pb2 import Usage
from headrace.core.errors import Cancelled, HeadraceError
from headrace.core.request import FinishReason

RESPONSE, MESSAGE = "resp_", "msg_"

Event = dict[str, Any]


@dataclass(slots=True)
class Response:
    """One answer as far as it is there. `key` is its handle, or its request's id where nothing is kept."""

    key: str
    model: str
    created_s: float
    background: bool
    text: list[str] = field(default_factory=list)
    finish: int = 0
    usage: Usage | None = None
    error: HeadraceError | None = None

    def add(self, piece: gateway_pb2.GenerateResponse) -> None:
        self.text.append(piece.text)
        self.finish = piece.finish_reason
        if piece.HasField("usage"):
            self.usage = piece.usage

    @property
    def status(self) -> str:
        if self.error is not None:
            return "cancelled" if isinstance(self.error, Cancelled) else "failed"
        if self.finish:
            return "incomplete" if self.finish == FinishReason.LENGTH else "completed"
        return "in_progress" if self.text or not self.background else "queued"

    def object(self) -> dict[str, Any]:
        """What was asked is not repeated: it is not kept."""
        status, error = self.status, None
        if status == "failed" and self.error is not None:
            error = {"code": "server_error", "message": self.error.message, "reason": self.error.reason.lower()}
        return {
            "id": RESPONSE + self.key,
            "object": "response",
            "created_at": int(self.created_s),
            "status": status,
            "background": self.background,
            "store": self.background,
            "model": self.model,
            "output": [self._item()] if self.text else [],
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": None if self.usage is None else _usage(self.usage),
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
        }

    def opening(self) -> Iterator[Event]:
        """The events before the first piece."""
        started = self.object() | {"status": "in_progress", "output": []}
        yield self._event(0, "response.created", response=started)
        yield self._event(1, "response.in_progress", response=started)
        empty = self._item() | {"status": "in_progress", "content": []}
        yield self._event(2, "response.output_item.added", output_index=0, item=empty)
        yield self._part_event(3, "response.content_part.added", part=_part(""))

    def delta(self, piece: gateway_pb2.GenerateResponse) -> Event:
        """The event of the piece that was added last."""
        number = _OPENING + len(self.text) - 1
        return self._part_event(number, "response.output_text.delta", delta=piece.text, logprobs=[])

    def closing(self) -> Iterator[Event]:
        """The events after the last piece. An answer that failed has one."""
        number = _OPENING + len(self.text)
        if self.error is None:
            text = "".join(self.text)
            yield self._part_event(number, "response.output_text.done", text=text, logprobs=[])
            yield self._part_event(number + 1, "response.content_part.done", part=_part(text))
            yield self._event(number + 2, "response.output_item.done", output_index=0, item=self._item())
            number += 3
        yield self._event(number, f"response.{self.status}", response=self.object())

    def _item(self) -> dict[str, Any]:
        return {
            "id": MESSAGE + self.key,
            "type": "message",
            "role": "assistant",
            "status": "completed" if self.status == "completed" else "incomplete" if self.ended else "in_progress",
            "content": [_part("".join(self.text))],
        }

    @property
    def ended(self) -> bool:
        return bool(self.finish) or self.error is not None

    def _event(self, number: int, name: str, **about: Any) -> Event:
        return {"type": name, "sequence_number": number} | about

    def _part_event(self, number: int, name: str, **about: Any) -> Event:
        return self._event(number, name, item_id=MESSAGE + self.key, output_index=0, content_index=0, **about)


_OPENING = 4


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
