"""The encoder's loop: batches as they are due, one forward for each rectangle in them; in one thread of its own.

Work comes in from any thread; what a batch produced goes out by one callback. It knows nothing of gRPC.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.core.errors import Cancelled, DeadlineMissed, EngineFault, InvalidRequest
from headrace.core.step_model import StepSample
from headrace.executor.encoding.gathering import Gathering
from headrace.executor.encoding.pooling import pooled
from headrace.executor.encoding.rectangles import Rectangle, rectangles
from headrace.executor.encoding.task import Batch, Done, Task
from headrace.executor.engines.encoder import Encoder
from headrace.executor.engines.protocol import Float32
from headrace.executor.step_reading import Stepped, StepReading, nobody

log = logging.getLogger(__name__)

_MOST_SAMPLES = 32
_MAX_CONSECUTIVE_FAULTS = 3


@dataclass(frozen=True, slots=True)
class EncoderStatus:
    """Counts at one moment. A block is a text's place: see executor/encoding/app.py."""

    num_running: int
    num_blocks_in_use: int
    num_steps: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Cancel:
    session: int
    request_id: str | None


class EncodeWorker:
    """Runs `encoder` for batches of up to `batch_rows` texts.

    `deliver(done)` is called from the worker's thread after each batch; `failed(error)` once if the loop must stop;
    `stepped` is told of each forward. Use as a context manager: leaving joins the thread.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        batch_rows: int,
        straggler_s: float,
        deliver: Callable[[Sequence[Done]], None],
        failed: Callable[[Exception], None],
        stepped: Stepped = nobody,
    ) -> None:
        self.encoder = encoder
        self._batch_rows = batch_rows
        self._deliver = deliver
        self._failed = failed
        self._stepped = stepped
        self._inbox: deque[Task | _Cancel] = deque()
        self._gathering = Gathering(straggler_s)
        self._running: list[Task] = []
        self._samples: deque[StepSample] = deque(maxlen=_MOST_SAMPLES)
        self._num_steps = 0
        self._num_tokens = 0
        self._wake = threading.Event()
        self._stopping = False
        self._faults: list[Exception] = []  # of the engine, in a row
        self._door = threading.Lock()  # nobody comes in while the loop tells those inside that it stops
        self._shut = False
        self._thread = threading.Thread(target=self._run, name="encode-loop", daemon=True)

    def __enter__(self) -> "EncodeWorker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def submit(self, task: Task) -> None:
        """Raises InvalidRequest where the model cannot do what the task asks, EngineFault once the loop has failed."""
        check(task, self.encoder)
        with self._door:
            if self._shut:
                raise EngineFault("the executor stops")
            self._inbox.append(task)
        self._wake.set()

    def cancel(self, session: int, request_id: str | None = None) -> None:
        """Ends the request, or all of the session's, unless its batch runs already. Unknown ones are ignored."""
        self._inbox.append(_Cancel(session, request_id))
        self._wake.set()

    @property
    def cache(self) -> None:
        """None: an encoder keeps nothing of a text."""

    @property
    def paused_ids(self) -> tuple[str, ...]:
        """None: a batch is too short to displace."""
        return ()

    def resume(self, request_ids: Iterable[str]) -> None:
        """Nothing is ever displaced here."""

    def go_alone(self) -> None:
        """Nothing here waits for the scheduler."""

    def obey(self) -> tuple[str, ...]:
        return ()

    def take_samples(self) -> list[StepSample]:
        """Some of the forwards since the last call, the newest."""
        samples = []
        while self._samples:
            samples.append(self._samples.popleft())
        return samples

    def status(self) -> EncoderStatus:
        num_running = len(self._running) + len(self._gathering) + len(self._inbox)
        return EncoderStatus(num_running, num_running, self._num_steps, self._num_tokens)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                self._take_inbox()
                if tasks := self._gathering.take(time.monotonic()):
                    self._running = tasks
                    self._deliver(self._encode(tasks))
                    self._running = []
                    if len(self._faults) >= _MAX_CONSECUTIVE_FAULTS:
                        raise self._faults[-1]
                else:
                    self._wake.wait(self._gathering.wait_s(time.monotonic()))
        except Exception as error:
            self._stop(error)

    def _take_inbox(self) -> None:
        while self._inbox:
            match self._inbox.popleft():
                case Task() as task:
                    self._gathering.add(task, time.monotonic())
                case _Cancel(session, request_id):
                    cancelled = self._gathering.remove(session, request_id)
                    if cancelled:
                        error = Cancelled("the caller went away")
                        self._deliver([Done(task, error=error) for task in cancelled])

    def _encode(self, tasks: Sequence[Task]) -> list[Done]:
        """A batch's texts, those of one padded length together. A forward that fails takes its own texts only."""
        now, began_ns = time.monotonic(), time.time_ns()
        missed = DeadlineMissed("the deadline passed while queued")
        failed = [Done(task, error=missed) for task in tasks if task.deadline is not None and task.deadline <= now]
        timely = [task for task in tasks if task.deadline is None or task.deadline > now]
        values: list[tuple[Task, int, Float32]] = []
        computed_tokens = 0
        for rectangle in rectangles(timely, self.encoder.spec, self._batch_rows):
            try:
                values += [(task, rectangle.length, answer) for task, answer in self._forward(rectangle)]
                computed_tokens += rectangle.length * len(rectangle.rows)
                self._faults.clear()
            except Exception as error:
                failed += self._fail(rectangle.tasks, error)
        num_tokens = sum(len(task.token_ids) for task, _, _ in values)
        batch = Batch(
            batch_id=tasks[0].batch_id,
            began_ns=began_ns,
            ended_ns=time.time_ns(),
            num_texts=len(values),
            num_tokens=num_tokens,
            padding_tokens=computed_tokens - num_tokens,
        )
        return [Done(task, answer, batch=batch, padded_tokens=length) for task, length, answer in values] + failed

    def _fail(self, tasks: Sequence[Task], error: Exception) -> list[Done]:
        """The engine failed: these texts do, the others go on. Again and again: the loop stops after this batch."""
        incident = secrets.token_hex(6)
        log.error("engine fault, incident %s", incident, exc_info=error)
        self._faults.append(error)
        fault = EngineFault(f"engine fault, incident {incident}")
        return [Done(task, error=fault) for task in tasks]

    def _forward(self, rectangle: Rectangle) -> list[tuple[Task, Float32]]:
        arrays = rectangle.arrays()
        began = time.perf_counter()
        output = self.encoder.forward(*arrays)
        computed = rectangle.length * len(rectangle.rows)
        sample = StepSample(0, computed, time.perf_counter() - began)
        num_tokens = sum(len(task.token_ids) for task in rectangle.tasks)
        self._samples.append(sample)
        self._stepped(StepReading(sample, len(rectangle.rows), padding_tokens=computed - num_tokens))
        self._num_steps += 1
        self._num_tokens += num_tokens
        if self.encoder.spec.has_head:
            return [(task, output[row].copy()) for task, row, _ in rectangle.places()]
        return [
            (
                task,
                pooled(
                    output[row, start : start + len(task.token_ids)],
                    task.pooling,
                    normalize=task.normalize,
                    dimensions=task.dimensions,
                ),
            )
            for task, row, start in rectangle.places()
        ]

    def _stop(self, error: Exception) -> None:
        """The loop cannot go on: whoever is in it or waits for it is told."""
        incident = secrets.token_hex(6)
        log.error("the encode loop stops, incident %s", incident, exc_info=error)
        fault = EngineFault(f"the executor stops, incident {incident}")
        with self._door:
            self._shut = True
            left = [*self._running, *(message for message in self._inbox if isinstance(message, Task))]
            self._inbox.clear()
            self._running = []
        while (tasks := self._gathering.take(float("inf"))) is not None:
            left += tasks
        self._deliver([Done(task, error=fault) for task in left])
        self._failed(error)


def check(task: Task, encoder: Encoder) -> None:
    """Raises InvalidRequest, naming the field and its limit, where the encoder cannot do what the task asks."""
    spec = encoder.spec
    if not 1 <= len(task.token_ids) <= spec.context_tokens:
        raise InvalidRequest(
            f"the text has {len(task.token_ids)} tokens, must have 1 to {spec.context_tokens}",
            field="texts",
            limit=f"1..{spec.context_tokens} tokens",
        )
    if int(task.token_ids.max()) >= spec.vocab_size:
        raise InvalidRequest(
            f"a token is outside the vocabulary of {spec.vocab_size}", field="tokens", limit=f"0..{spec.vocab_size - 1}"
        )
    if task.scores != spec.has_head:
        have, want = ("scores", "vectors") if spec.has_head else ("vectors", "scores")
        raise InvalidRequest(f"the model gives {have}, not {want}", field="model", limit=f"a model that gives {want}")
    if task.dimensions > spec.output_size:
        raise InvalidRequest(
            f"dimensions is {task.dimensions}, the model's vectors have {spec.output_size}",
            field="dimensions",
            limit=f"1..{spec.output_size}",
        )
