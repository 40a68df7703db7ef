"""Which precision serves: a table of rules over class, length and model for requests without a wish of their own.

A rule reads `[model:][class][>tokens]=precision[|precision…]`, `*` for any request; the first that fits counts. Only
what executors have loaded and have room for is ever chosen: of a rule's precisions the first that is there, else the
nearest that holds more, else the best there is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from headrace.core.request import Precision, QosClass

SERVED_BY: dict[Precision, tuple[Precision, ...]] = {
    Precision.ANY: (Precision.ANY,),
    Precision.FP32: (Precision.FP32,),
    Precision.BF16: (Precision.BF16, Precision.FP32),  # neither half precision holds all that the other does
    Precision.FP16: (Precision.FP16, Precision.FP32),
    Precision.INT8: (Precision.INT8, Precision.FP16, Precision.BF16, Precision.FP32),
}
"""Which precisions serve a wish, best first: itself, else the nearest that holds more."""
DEFAULT_RULES = "realtime=fp32 >512=fp16|bf16 *=int8"
NO_RULES = "off"
_RULE = re.compile(
    r"(?:(?P<model>[^\s:=>]+):)?(?!=)(?:\*|(?P<qos>realtime|normal|batch)?(?:>(?P<tokens>\d{1,9}))?)=(?P<names>[a-z0-9|]+)"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Fits requests of the class (None: any) and model ("": any) with more prompt tokens than `above_tokens`."""

    precisions: tuple[Precision, ...]
    qos_class: QosClass | None = None
    above_tokens: int = -1
    model: str = ""

    def fits(self, model: str, qos_class: QosClass, prompt_tokens: int) -> bool:
        return self.model in ("", model) and self.qos_class in (None, qos_class) and prompt_tokens > self.above_tokens


@lru_cache(maxsize=16)
def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules, separated by blanks; none for `off`. Raises ValueError that says which is none."""
    if text == NO_RULES:
        return ()
    rules = tuple(_rule(part) for part in text.split())
    if not rules:
        raise ValueError(f"no rules: say {NO_RULES}")
    return rules


def choose(
    rules: Sequence[Rule], model: str, qos_class: QosClass, prompt_tokens: int, loaded: Sequence[Precision]
) -> Precision:
    """Of those loaded, what the rules want; ANY where none fits or nothing is loaded."""
    rule = next((rule for rule in rules if rule.fits(model, qos_class, prompt_tokens)), None)
    if rule is None or not loaded:
        return Precision.ANY
    wanted = (*rule.precisions, *SERVED_BY[rule.precisions[0]])
    return next((each for each in wanted if each in loaded), min(loaded))


def _rule(text: str) -> Rule:
    found = _RULE.fullmatch(text)
    names = found["names"].upper().split("|") if found else []
    if found is None or not all(name in Precision.__members__ and name != Precision.ANY.name for name in names):
        raise ValueError(f"{text!r} is no rule like realtime=fp32, >512=fp16|bf16, *=int8")
    return Rule(
        tuple(Precision[name] for name in names),
        QosClass[found["qos"].upper()] if found["qos"] else None,
        int(found["tokens"]) if found["tokens"] else -1,
        found["model"] or "",
    )
