"""Which precision serves a request without a wish."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.precision import DEFAULT_RULES, SERVED_BY, Rule, choose, parse_rules
from headrace.core.request import Precision, QosClass

FP32, BF16, FP16, INT8 = Precision.FP32, Precision.BF16, Precision.FP16, Precision.INT8
LOADED = st.lists(st.sampled_from([FP32, BF16, FP16, INT8]), unique=True)


@pytest.mark.parametrize(
    ("qos_class", "prompt_tokens", "loaded", "chosen"),
    [
        (QosClass.REALTIME, 10, [FP32, BF16, INT8], FP32),
        (QosClass.REALTIME, 900, [BF16, INT8], BF16),  # the best there is
        (QosClass.NORMAL, 513, [FP32, FP16, BF16, INT8], FP16),
        (QosClass.NORMAL, 513, [FP32, BF16, INT8], BF16),
        (QosClass.NORMAL, 512, [FP32, BF16, INT8], INT8),
        (QosClass.BATCH, 10, [FP32, BF16], BF16),  # the nearest that holds more
        (QosClass.BATCH, 10, [FP32], FP32),
        (QosClass.NORMAL, 513, [INT8], INT8),
        (QosClass.NORMAL, 513, [], Precision.ANY),
    ],
)
def test_the_default_rules(qos_class: QosClass, prompt_tokens: int, loaded: list[Precision], chosen: Precision) -> None:
    assert choose(parse_rules(DEFAULT_RULES), "m", qos_class, prompt_tokens, loaded) is chosen


def test_the_first_rule_that_fits_counts() -> None:
    rules = parse_rules("chat:batch>100=int8 chat:*=bf16 batch=fp16 >50=fp32")
    assert rules == (
        Rule((INT8,), QosClass.BATCH, 100, "chat"),
        Rule((BF16,), model="chat"),
        Rule((FP16,), QosClass.BATCH),
        Rule((FP32,), above_tokens=50),
    )
    loaded = [FP32, BF16, FP16, INT8]

    def of(model: str, qos_class: QosClass, prompt_tokens: int) -> Precision:
        return choose(rules, model, qos_class, prompt_tokens, loaded)

    assert of("chat", QosClass.BATCH, 101) is INT8
    assert of("chat", QosClass.BATCH, 100) is BF16
    assert of("other", QosClass.BATCH, 101) is FP16
    assert of("other", QosClass.NORMAL, 51) is FP32
    assert of("other", QosClass.NORMAL, 50) is Precision.ANY


@pytest.mark.parametrize(
    "text",
    ["", " ", "int8", "*=", "*=any", "*=fp7", "fast=int8", ">x=int8", "*=int8|", "m:=int8", "=int8", "batch=INT8"],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rule"):
        parse_rules(text)


def test_rules_can_be_off() -> None:
    assert parse_rules("off") == ()
    assert choose((), "m", QosClass.REALTIME, 1, [FP32, INT8]) is Precision.ANY


@given(
    qos_class=st.sampled_from(QosClass),
    prompt_tokens=st.integers(0, 2000),
    loaded=LOADED,
    wanted=st.lists(st.sampled_from([FP32, BF16, FP16, INT8]), min_size=1, unique=True),
)
def test_only_what_is_loaded_is_chosen_and_a_wanted_one_where_there_is_one(
    qos_class: QosClass, prompt_tokens: int, loaded: list[Precision], wanted: list[Precision]
) -> None:
    chosen = choose((Rule(tuple(wanted)),), "m", qos_class, prompt_tokens, loaded)
    if not loaded:
        assert chosen is Precision.ANY
        return
    assert chosen in loaded
    there = [each for each in wanted if each in loaded]
    if there:
        assert chosen is there[0]
    elif enough := [each for each in SERVED_BY[wanted[0]] if each in loaded]:
        assert chosen is enough[0]
