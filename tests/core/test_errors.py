"""The error tree: a stable reason each, and none twice."""

import re

from headrace.core import errors
from headrace.core.request import FinishReason, Precision, QosClass


def classes() -> list[type[errors.HeadraceError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [kind for kind in found if issubclass(kind, errors.HeadraceError)]


def test_each_class_has_a_reason_of_its_own() -> None:
    assert {kind.reason: kind for kind in classes()} == errors.ERROR_BY_REASON
    assert len(errors.ERROR_BY_REASON) == len(classes())
    assert all(re.fullmatch("[A-Z]+(_[A-Z]+)*", reason) for reason in errors.ERROR_BY_REASON)


def test_values_equal_those_on_the_wire() -> None:
    from headrace.api.types.v1 import types_pb2 as pb

    pairs = [(QosClass, pb.QosClass, "QOS_CLASS"), (FinishReason, pb.FinishReason, "FINISH_REASON")]
    for ours, wire, prefix in [*pairs, (Precision, pb.Precision, "PRECISION")]:
        named = {"NONE": "UNSPECIFIED", "ANY": "UNSPECIFIED"}
        known = {f"{prefix}_{named.get(member.name, member.name)}": member.value for member in ours}
        assert {key: value for key, value in wire.items() if key in known or value != 0} == known
