"""Tokens of one stream gather into fewer, longer pieces where many streams run. Pure.

A piece costs executor, gateway and client the same whether it holds one token or eight, and on one machine they take
that time from the engine.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headrace.core.request import FinishReason, QosClass
from headrace.executor.step_result import Delta

FEW_STREAMS = 8
"""So many never gather."""
LONGEST_S = 0.4
"""Between two pieces of a stream, as far as it has new tokens."""

_Key = tuple[str, int, int]  # request id, session, answer


@dataclass(slots=True)
class _Stream:
    sent_at: float
    held: list[Delta] = field(default_factory=list)


class Gathering:
    """Lets out about `pieces_per_s` pieces a second of all streams together, more where few run.

    A stream's first token, its end and all of a realtime stream go out at once.
    """

    def __init__(self, pieces_per_s: int) -> None:
        self._pieces_per_s = pieces_per_s
        self._streams: dict[_Key, _Stream] = {}

    @property
    def num_streams(self) -> int:
        """Streams that have begun and not ended."""
        return len(self._streams)

    def take(self, deltas: Iterable[Delta], finished: Collection[str], now: float) -> list[list[Delta]]:
        """The pieces that go out at `now`, in seconds: each the deltas of one answer, in order. Of the requests that
        have `finished` nothing stays."""
        pieces: list[list[Delta]] = []
        for delta in deltas:
            key = delta.job.request_id, delta.job.session, delta.index
            stream = self._streams.get(key)
            if delta.error is not None or delta.finish is not FinishReason.NONE:
                self._streams.pop(key, None)
                pieces.append([*(stream.held if stream else ()), delta])
            elif stream is None:
                self._streams[key] = _Stream(now)
                pieces.append([delta])
            else:
                stream.held.append(delta)
        if finished:
            for key in [key for key in self._streams if key[0] in finished]:
                if held := self._streams.pop(key).held:
                    pieces.append(held)
        interval_s = min(LONGEST_S, max(0, self.num_streams - FEW_STREAMS) / self._pieces_per_s)
        for stream in self._streams.values():
            held = stream.held
            if held and (now - stream.sent_at >= interval_s or held[-1].job.priority == QosClass.REALTIME):
                pieces.append(held)
                stream.held, stream.sent_at = [], now
        return pieces
