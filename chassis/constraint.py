"""Constraints on answers to and from the `constraint` of a Sampling message, as every service carries it."""

from headrace.api.types.v1 import types_pb2
from headrace.core.constraint import Constraint, ConstraintKind

CONSTRAINT_FIELDS = frozenset(kind.value for kind in ConstraintKind)


def from_sampling(proto: types_pb2.Sampling) -> Constraint | None:
    """None where the answer's text is free."""
    match proto.WhichOneof("constraint"):
        case None:
            return None
        case "json_object":
            return Constraint(ConstraintKind.JSON_OBJECT) if proto.json_object else None
        case "choice":
            return Constraint(ConstraintKind.CHOICE, texts=tuple(proto.choice.texts))
        case name:
            return Constraint(ConstraintKind(name), getattr(proto, name))


def put_constraint(proto: types_pb2.Sampling, constraint: Constraint | None) -> None:
    """Replaces the message's."""
    proto.ClearField("constraint")
    if constraint is None:
        return
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            proto.json_object = True
        case ConstraintKind.CHOICE:
            proto.choice.SetInParent()
            proto.choice.texts.extend(constraint.texts)
        case kind:
            setattr(proto, kind.value, constraint.text)
