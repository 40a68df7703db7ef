"""Parameters in the forms that clients send them; what is wrong or unknown is refused by name."""

import pytest

from headrace.api.inference import inference_pb2 as pb
from headrace.core.errors import InvalidRequest
from headrace.gateway.kserve.parameters import UINT32, Parameters


def given(**values) -> Parameters:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return Parameters({name: pb.InferParameter(**{kinds[type(value)]: value}) for name, value in values.items()})


def test_numbers_flags_and_lists_may_be_strings():
    parameters = given(a="7", b=7, c=7.0, d="0.5", e=1, f="true", g=False, h='["x", "y"]', i="x", j="[1, 2]")
    assert [parameters.integer(name, UINT32) for name in "abc"] == [7, 7, 7]
    assert [parameters.number(name) for name in "de"] == [0.5, 1.0]
    assert [parameters.flag(name) for name in "fg"] == [True, False]
    assert [parameters.texts(name) for name in "hi"] == [["x", "y"], ["x"]]
    assert parameters.integers("j", UINT32) == [1, 2]
    parameters.finish()


def test_what_is_not_there_is_none():
    parameters = given()
    assert parameters.integer("a", 1) is parameters.number("a") is parameters.flag("a") is parameters.text("a") is None
    assert parameters.texts("a") == parameters.integers("a", 1) == []


def test_an_object_of_json_joins_them():
    parameters = given(a=1)
    parameters.join('{"b": "0.5", "c": true, "d": [1, 2], "e": ["x"]}', "sampling_parameters")
    assert (parameters.integer("a", 9), parameters.number("b"), parameters.flag("c")) == (1, 0.5, True)
    assert (parameters.integers("d", 9), parameters.texts("e")) == ([1, 2], ["x"])
    parameters.finish()


@pytest.mark.parametrize("text", ["", "[]", "1", "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_what_is_no_object_of_json_is_refused(text):
    with pytest.raises(InvalidRequest) as refused:
        given().join(text, "sampling_parameters")
    assert refused.value.field == "sampling_parameters"


def test_a_parameter_in_both_places_is_refused():
    with pytest.raises(InvalidRequest) as refused:
        given(a=1).join('{"a": 1}', "sampling_parameters")
    assert refused.value.field == "parameters.a"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("many", lambda parameters: parameters.integer("a", 9)),
        (True, lambda parameters: parameters.integer("a", 9)),
        (0.5, lambda parameters: parameters.integer("a", 9)),
        (10, lambda parameters: parameters.integer("a", 9)),
        (-1, lambda parameters: parameters.integer("a", 9)),
        ("9" * 5000, lambda parameters: parameters.integer("a", 9)),
        ("warm", lambda parameters: parameters.number("a")),
        (True, lambda parameters: parameters.number("a")),
        ("perhaps", lambda parameters: parameters.flag("a")),
        (2, lambda parameters: parameters.flag("a")),
        (1, lambda parameters: parameters.text("a")),
        (1, lambda parameters: parameters.texts("a")),
        ('["\\ud800"]', lambda parameters: parameters.texts("a")),
        ('["x"]', lambda parameters: parameters.integers("a", 9)),
        ("x", lambda parameters: parameters.choice("a", {"y": 1})),
    ],
)
def test_what_is_wrong_is_refused_by_name(value, read):
    with pytest.raises(InvalidRequest) as refused:
        read(given(a=value))
    assert refused.value.field == "parameters.a"
    assert refused.value.limit
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("value", ["1e400", "Infinity", "-1e999"])
def test_json_numbers_without_end_are_left_to_the_bounds(value):
    parameters = given()
    parameters.join(f'{{"a": {value}}}', "sampling_parameters")
    assert abs(parameters.number("a") or 0) == float("inf")


def test_a_number_that_no_float_holds_is_refused():
    parameters = given()
    parameters.join('{"a": 1' + "0" * 400 + "}", "sampling_parameters")
    with pytest.raises(InvalidRequest) as refused:
        parameters.number("a")
    assert refused.value.field == "parameters.a"


def test_what_nobody_asked_for_is_refused():
    with pytest.raises(InvalidRequest) as refused:
        given(best_of=2).finish()
    assert refused.value.field == "parameters.best_of"
    with pytest.raises(InvalidRequest) as empty:
        Parameters({"a": pb.InferParameter()})
    assert empty.value.field == "parameters.a"
