"""What a constrained answer may say next: one matcher an answer, its masks made in threads while the device works.

The step loop owns a guide while it is `ready`; between `accept` and that a thread of `Guides` does. Neither waits for
the other: a row whose mask is not there when the step is read is put in again.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from headrace.core.constraint import Constraint
from headrace.core.errors import EngineFault, HeadraceError, InvalidRequest
from headrace.models.grammar import matcher_of

log = logging.getLogger(__name__)

Ids = NDArray[np.int64]

MAX_KEPT_MATCHERS = 64
"""Of constraints that have been used lately: another answer with one of them begins in microseconds."""
_THREADS = 2


class Guides:
    """Makes the guides of an executor's answers. `load` gives the model's vocabulary, at first use.

    `on_ready` is called from a thread whenever a mask has been made. Use as a context manager: leaving ends the
    threads.
    """

    def __init__(self, load: Callable[[], LLTokenizer], vocab_size: int) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.vocab_size = vocab_size
        self._load = load
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._making = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="guide")

    def __enter__(self) -> "Guides":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def open(self, constraint: Constraint, known: Sequence[int]) -> "Guide":
        """A new answer's, which has the `known` tokens. Never waits."""
        return Guide(self, constraint, known)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Does it in a thread; what goes wrong there fails one answer."""

        def guarded() -> None:
            try:
                work()
            except HeadraceError:
                raise
            except BaseException as error:  # a panic of the library's is no Exception
                log.exception("a constraint's matcher failed")
                raise EngineFault("the constraint's matcher failed") from error

        done = self._pool.submit(guarded)
        done.add_done_callback(lambda _: self.on_ready())
        return done

    def matcher(self, constraint: Constraint) -> LLMatcher:
        """At the beginning of an answer; in a thread. Raises InvalidRequest."""
        with self._making:
            kept = self._kept.get(constraint)
            if kept is None:
                self._tokens = self._tokens or self._load()
                kept = self._kept[constraint] = matcher_of(self._tokens, constraint)
                if len(self._kept) > MAX_KEPT_MATCHERS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(constraint)
            return kept.deep_copy()


class Guide:
    """One answer's. What it raises has been found out in a thread: InvalidRequest where the constraint takes too much
    or no text satisfies it, EngineFault where its matcher fails.

    `ended`: nothing more may follow. `late` counts the rows that had to be put in again.
    """

    def __init__(self, guides: Guides, constraint: Constraint, known: Sequence[int]) -> None:
        self.ended = False
        self.late = 0
        self._guides = guides
        self._constraint = constraint
        self._mask = np.zeros(-(-guides.vocab_size // 32), np.uint32)  # one bit a token, the lowest first
        self._matcher: LLMatcher | None = None
        self._waited = False
        self._made = guides.submit(lambda: self._begin(known))

    @property
    def ready(self) -> bool:
        return self._made.done()

    @property
    def failed(self) -> bool:
        """It is ready, and has nothing but its error."""
        return self.ready and self._made.exception() is not None

    @property
    def holds(self) -> bool:
        """A row has been in vain, and another one would be too."""
        if self._waited and self.ready:
            self._waited = False
        return self._waited

    def note_late(self) -> None:
        """A step has been read before the mask was there."""
        self.late += 1
        self._waited = True

    def allows(self, token_id: int) -> bool:
        """Once it is ready."""
        self._made.result()
        return bool(self._mask[token_id >> 5] >> (token_id & 31) & 1)

    def allowed(self) -> Ids:
        """[A >= 1], ascending, once it is ready."""
        self._made.result()
        bits = np.unpackbits(self._mask.view(np.uint8), count=self._guides.vocab_size, bitorder="little")
        ids: Ids = np.flatnonzero(bits.view(np.bool_))
        return ids

    def accept(self, token_id: int) -> None:
        """The answer's next token, once it is ready; the mask after it is begun. Takes microseconds."""
        matcher = self._its_matcher()
        if not matcher.consume_token(token_id):
            raise self._too_much()
        self.ended = matcher.is_stopped()
        if not self.ended:
            self._made = self._guides.submit(self._fill)

    def fork(self) -> "Guide":
        """Another answer's that begins where this one, which is ready, stands."""
        other = object.__new__(Guide)
        other.ended, other.late, other._waited = self.ended, 0, False
        other._guides, other._constraint, other._made = self._guides, self._constraint, self._made
        other._mask, other._matcher = self._mask.copy(), self._its_matcher().deep_copy()
        return other

    def _begin(self, known: Sequence[int]) -> None:
        self._matcher = self._guides.matcher(self._constraint)
        if not self._matcher.consume_tokens(list(known)):
            raise InvalidRequest(
                f"the answer so far is not what {self._constraint.field} allows", field="answer_token_ids"
            )
        self._fill()

    def _fill(self) -> None:
        matcher = self._its_matcher()
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if matcher.is_error():
            raise self._too_much()
        if not self._mask.any() or (matcher.is_stopped() and not matcher.is_accepting()):
            raise InvalidRequest(
                f"{self._constraint.field}: no text satisfies it", field=self._constraint.field, limit="satisfiable"
            )

    def _its_matcher(self) -> LLMatcher:
        if self._matcher is None:
            self._made.result()  # raises why there is none
            raise RuntimeError("the guide is not ready")
        return self._matcher

    def _too_much(self) -> HeadraceError:
        why = " ".join(self._its_matcher().get_error().split())[:200]
        return InvalidRequest(
            f"{self._constraint.field} took too much in mid-answer: {why}", field=self._constraint.field
        )
