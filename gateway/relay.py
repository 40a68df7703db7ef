"""One request's stream: from the queue to its executor to the caller. Pure state on the event loop, no gRPC.

Links and the deadline's timer put events in without waiting (place, output, fail); the call's own task takes pieces
out. What gathers while the caller reads slowly is merged, so a request never holds more than its answers' length.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from headrace.core.errors import Cancelled, DeadlineMissed, EngineFault, HeadraceError, Unavailable
from headrace.core.request import FinishReason, Precision, QosClass
from headrace.gateway.answer import Answer
from headrace.gateway.generation import TOKEN_BYTES, Generation, Known, Output, Piece, Placement, State, Usage

MAX_PIECE_TOKENS = 4096
"""With all logprobs that can be asked for this is still well within a message."""


def merged(outputs: Sequence[Output]) -> list[Output]:
    """One output an answer (several only past MAX_PIECE_TOKENS), in order; the latest finish reason holds."""
    groups: list[list[Output]] = []
    latest: dict[int, tuple[list[Output], int]] = {}
    for output in outputs:
        group, num_bytes = latest.get(output.index, ([], 0))
        num_bytes += len(output.token_ids)
        if not group or num_bytes > MAX_PIECE_TOKENS * TOKEN_BYTES:
            group, num_bytes = [], len(output.token_ids)
            groups.append(group)
        group.append(output)
        latest[output.index] = group, num_bytes
    return [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _joined(group: Sequence[Output]) -> Output:
    return Output(
        index=group[0].index,
        token_ids=b"".join(output.token_ids for output in group),
        logprobs=[logprobs for output in group for logprobs in output.logprobs],
        finish=group[-1].finish,
        cached_prompt_tokens=max(output.cached_prompt_tokens for output in group),
    )


class Relay:
    """State of one request: QUEUED until placed, RUNNING until every answer has ended, or ENDED by `error`.

    Where its executor is lost it is QUEUED again under a new wire id with the tokens that have come, up to
    `max_failovers` times; `num_failovers` counts them and `lost_by` is why it last happened.
    """

    def __init__(
        self, generation: Generation, answers: Sequence[Answer], max_buffered_frames: int, max_failovers: int = 0
    ) -> None:
        self.generation = generation
        self.answers = answers
        self.state = State.QUEUED
        self.error: HeadraceError | None = None
        self.served_by: Placement | None = None
        self.num_failovers = 0
        self.lost_by: HeadraceError | None = None
        self._max_failovers = max_failovers
        self._first_wire_id = generation.wire_id
        self._received = [bytearray() for _ in answers]
        self._declined: HeadraceError | None = None
        self._precision: Precision | None = None
        self._moved = asyncio.Event()
        self._max_buffered_frames = max_buffered_frames
        self._inbox: list[Output] = []
        self._wake = asyncio.Event()
        self._unfinished = set(range(len(answers)))
        self._refused = False
        self._first = True
        self._cached_prompt_tokens = 0

    @property
    def ended(self) -> bool:
        return self.state is State.ENDED

    @property
    def executor_done(self) -> bool:
        """The executor has nothing left to do for this request."""
        return self._refused or not self._unfinished

    @property
    def num_frames(self) -> int:
        """Outputs that wait for the caller."""
        return len(self._inbox)

    @property
    def num_tokens(self) -> int:
        """Over all answers."""
        return sum(answer.num_tokens for answer in self.answers)

    def place(self, placement: Placement) -> bool:
        """False where the request has ended: the placement is not used."""
        if self.state is not State.QUEUED:
            return False
        self.served_by = placement
        if self._precision is None:
            self._precision = placement.precision
        self._to(State.RUNNING)
        return True

    def decline(self, error: HeadraceError) -> None:
        """The scheduler has no place for it: `placement` raises, and what that means is for its caller to say."""
        self._declined = error
        self._moved.set()

    def lose(self, error: HeadraceError) -> None:
        """The executor is gone: the request waits for another, or ends where it has done so often enough."""
        if self.state is not State.RUNNING:
            return
        self._unfinished -= {index for index, answer in enumerate(self.answers) if answer.finish}
        if not self._unfinished:
            return  # all of it is here
        if self.num_failovers == self._max_failovers:
            self.fail(error)
            return
        self.num_failovers += 1
        self.lost_by = error
        served = self.served_by.precision if self.served_by else Precision.ANY
        self.generation = self._gone_on_with(f"{self._first_wire_id}.{self.num_failovers}", served)
        self.served_by = None
        self._to(State.QUEUED)

    def resume(self, known: Known) -> None:
        """Begins after what another gateway has made, which is not handed out again. Before it is placed, and only
        where an answer has not ended."""
        for index, (token_ids, finish) in enumerate(zip(known.token_ids, known.finishes, strict=True)):
            self.answers[index].push(Output(index, token_ids, [], finish))
            self._received[index] += token_ids
            if finish:
                self._unfinished.discard(index)
        self._first, self._precision = not known.precision, known.precision or None
        self.generation = self._gone_on_with(self.generation.wire_id, known.precision)

    def _gone_on_with(self, wire_id: str, served: Precision) -> Generation:
        """The generation with the tokens that have come."""
        return replace(
            self.generation,
            wire_id=wire_id,
            precision=served or self.generation.precision,  # another one would not give the same answer
            answer_token_ids=tuple(bytes(each) for each in self._received),
            ended_answers=tuple(sorted(set(range(len(self.answers))) - self._unfinished)),
            known_tokens=min(len(self._received[index]) for index in self._unfinished) // TOKEN_BYTES,
        )

    def _to(self, state: State) -> None:
        self.state = state
        self._wake.set()
        self._moved.set()

    def output(self, output: Output) -> None:
        """Takes one answer's new tokens."""
        if output.index >= len(self.answers):
            self.fail(EngineFault(f"the executor sent answer {output.index} of {len(self.answers)}"))
            return
        if output.finish is not FinishReason.NONE:
            self._unfinished.discard(output.index)
        if self.state is State.ENDED:
            return
        self._received[output.index] += output.token_ids
        if output.cached_prompt_tokens > self._cached_prompt_tokens:
            self._cached_prompt_tokens = output.cached_prompt_tokens
        self._inbox.append(output)
        if len(self._inbox) > self._max_buffered_frames:
            self._inbox = merged(self._inbox)
        self._wake.set()

    def fail(self, error: HeadraceError) -> None:
        """The request ends with `error` once what has arrived is delivered.

        The first failure counts; none counts once everything has arrived.
        """
        if self._unfinished:
            self._end(error)

    def _end(self, error: HeadraceError) -> None:
        if self.state is not State.ENDED:
            self.error = error
            self._to(State.ENDED)

    def refused(self, error: HeadraceError) -> None:
        """The executor failed it: nothing is left to cancel there. One that was leaving counts as lost."""
        if isinstance(error, Unavailable):
            self.lose(error)
            return
        self._refused = True
        self.fail(error)

    def demote(self) -> None:
        """Nobody waits for it now: wherever it is placed from here on, it goes at batch priority."""
        self.generation = replace(self.generation, qos=QosClass.BATCH)

    def expire(self) -> None:
        self.fail(deadline_missed(self.num_tokens))

    async def placement(self) -> Placement:
        """Waits until placed. Raises what failed the request, or why the scheduler declined it."""
        while self.served_by is None:
            if self.error:
                raise self.error
            if self._declined:
                declined, self._declined = self._declined, None
                raise declined
            await self._moved.wait()
            self._moved.clear()
        return self.served_by

    async def left(self) -> None:
        """Waits until the request, once placed, has ended or lost its executor."""
        while self.state is State.RUNNING:
            await self._moved.wait()
            self._moved.clear()

    async def pieces(self) -> list[Piece]:
        """Waits for tokens; one piece for each answer that has new ones. [] once all have ended.

        Raises what failed the request, after everything that arrived before has been handed out.
        """
        while True:
            if pieces := self._take():
                return pieces
            if self.error:
                raise self.error
            if self.state is State.ENDED:
                return []
            await self._wake.wait()
            self._wake.clear()

    def _take(self) -> list[Piece]:
        outputs, self._inbox = self._inbox, []
        pieces = []
        for output in merged(outputs):
            answer = self.answers[output.index]
            if not answer.finish:  # else it ended by a stop string and the executor does not know yet
                pieces.append(answer.push(output))
        for piece in pieces:
            if piece.finish in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.FAULT):
                self._end(_failure(piece.finish, self.num_tokens))
                piece.finish = FinishReason.NONE
        pieces = [piece for piece in pieces if piece.token_ids or piece.text or piece.finish]
        if not pieces:
            return pieces
        if self._first and self._precision is not None:
            self._first, pieces[0].precision = False, self._precision
        if self.error is None and all(answer.finish for answer in self.answers):
            self._to(State.ENDED)
            pieces[-1].usage = self.usage
        return pieces

    @property
    def usage(self) -> Usage:
        return Usage(len(self.generation.token_ids), self.num_tokens, self._cached_prompt_tokens)


def _failure(finish: FinishReason, num_tokens: int) -> HeadraceError:
    """The error for a finish reason that is no answer's proper end."""
    if finish is FinishReason.DEADLINE:
        return deadline_missed(num_tokens)
    if finish is FinishReason.CANCELLED:
        return Cancelled("the executor cancelled the request")
    return EngineFault("the executor failed the request")


def deadline_missed(num_tokens: int) -> DeadlineMissed:
    """Says which side of the first token the deadline fell on."""
    if num_tokens:
        return DeadlineMissed(f"the deadline passed while generating, after {num_tokens} tokens")
    return DeadlineMissed("the deadline passed while queued, before the first token")
