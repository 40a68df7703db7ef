"""Malformed calls drawn from the contracts' own descriptors: what a careless, a broken or a hostile peer may send.

A call's frames follow from the seed, the method and the call's number alone, so a case that failed can be sent again.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from headrace.models import reference

FRAMES = 24
GIANT_BYTES = 5 * 2**16
MODELS = (reference.NAME, "minilm", "fuzz")
IDS = tuple(f"fuzz-{number}" for number in range(8))
WORDS: dict[str, tuple[Any, ...]] = {
    "LoadedModel.name": ("fuzz",),  # of executors that nobody else is sent to
    "LoadedModel.context_tokens": (0, 1, 64),
    "Enlistment.num_slots": (0, 1, 77),
    "model": MODELS,
    "model_name": MODELS,
    "request_id": IDS,
    "id": IDS,
    "gateway_id": IDS,
    "executor_id": IDS,
    "started_request_ids": IDS,
    "finished_request_ids": IDS,
    "paused_request_ids": IDS,
    "running_request_ids": IDS,
    "cancelled_request_ids": IDS,
    "demoted_request_ids": IDS,
    "token_ids": (b"", b"\1\0\0\0\2\0\0\0", b"\1\0\0"),
    "role": ("user", "system"),
    "max_tokens": (1, 4, 2**32 - 1),
    "max_output_tokens": (1, 4, 2**32 - 1),
    "n": (0, 1, 2, 2**32 - 1),
    "SettingsEntry.key": ("realtime_wait_s", "none"),
    "datatype": ("BYTES", "UINT32", "INT32", "FP32", "XYZ"),
    "batch_size": (0, 1, 2, 2**32 - 1),
    "InferInputTensor.name": ("text_input", "max_tokens", "stream", "temperature", "none"),
    "shape": (1, 0, -1, 2**62),
}
"""Values that get a message past its first checks: mostly these by field, only these by message and field. Executors
are small: to one that could serve it, a giant request may wait, and its class's queue is full for everybody else."""
BAD_TEXT = "BADUTF8!"
TEXTS = ("", "a", "0", "naïve 名前 😀", "\0\n", "x" * 9000, BAD_TEXT)
INTEGERS = (0, 1, 2, 3, 77, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63))
REALS = (0.0, 0.5, 1.0, -1.0, float("nan"), float("inf"), 1e-45, 3e38)
BITS = {"INT32": (-(2**31), 2**31), "INT64": (-(2**63), 2**63), "UINT32": (0, 2**32), "UINT64": (0, 2**64)}
RANGE = {getattr(FieldDescriptor, f"CPPTYPE_{name}"): bounds for name, bounds in BITS.items()}
RANGE[FieldDescriptor.CPPTYPE_ENUM] = RANGE[FieldDescriptor.CPPTYPE_INT32]
IN_RANGE = {kind: [number for number in INTEGERS if low <= number < high] for kind, (low, high) in RANGE.items()}
ORDER = {"EnlistRequest": ("enlistment", "report"), "SubmitRequest": ("gateway_id", "submissions")}
"""What the first frame of a stream must have, and those after it: mostly so, to get past the first frame."""


def value(draw: random.Random, owner: Descriptor, field: FieldDescriptor) -> Any:
    if words := WORDS.get(f"{owner.name}.{field.name}"):
        return draw.choice(words)
    if (words := WORDS.get(field.name)) and draw.random() < 0.9:
        return draw.choice(words)
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw.randbytes(draw.choice((0, 1, 3, 4, 8, 64)))
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw.choice(REALS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    return draw.choice(IN_RANGE[field.cpp_type])


def fill(draw: random.Random, message: Any) -> None:
    owner = message.DESCRIPTOR
    for field in owner.fields:
        if draw.random() >= 0.3:
            fill_field(draw, message, owner, field)


def fill_field(draw: random.Random, message: Any, owner: Descriptor, field: FieldDescriptor) -> None:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, held = entry.fields_by_name["key"], entry.fields_by_name["value"]
        target = getattr(message, field.name)
        if held.message_type is not None:
            fill(draw, target[value(draw, entry, key)])
        else:
            target[value(draw, entry, key)] = value(draw, entry, held)
    elif field.is_repeated:
        for _ in range(draw.choice((1, 1, 2, 5))):
            if entry is not None:
                fill(draw, getattr(message, field.name).add())
            else:
                getattr(message, field.name).append(value(draw, owner, field))
    elif entry is not None:
        getattr(message, field.name).SetInParent()
        fill(draw, getattr(message, field.name))
    else:
        setattr(message, field.name, value(draw, owner, field))


def message_of(draw: random.Random, descriptor: Descriptor, place: int) -> bytes:
    """The `place`-th of a stream, or the only one."""
    message = GetMessageClass(descriptor)()
    fill(draw, message)
    if (order := ORDER.get(descriptor.name)) and draw.random() < 0.95:
        fill_field(draw, message, descriptor, descriptor.fields_by_name[order[place > 0]])
    data: bytes = message.SerializeToString()
    return data


def damaged(draw: random.Random, data: bytes) -> bytes:
    match draw.choices(range(7), weights=(20, 20, 10, 20, 2, 8, 20))[0]:
        case 0:
            return data[: draw.randrange(len(data) + 1)]
        case 1:
            flipped = bytearray(data)
            for _ in range(min(len(data), 4)):
                flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            return bytes(flipped)
        case 2:
            return data + b"\xfa\xff\x01\x03abc"  # a field that nobody knows
        case 3:
            return draw.randbytes(draw.randrange(64))
        case 4:
            return b"\xfa\xff\x01\x80\x80\x14" + bytes(GIANT_BYTES)
        case 5:
            return draw.choice((b"\x0b" * 200, b""))  # groups within groups
        case _:
            return data.replace(BAD_TEXT.encode(), b"\xff\xfe\xc3\x28\xf0\x28\x8c\x28")


def frames(draw: random.Random, method: MethodDescriptor) -> list[bytes]:
    """Of one call. In a stream all but the last decode, since one that does not ends the stream; some come twice or out
    of order."""
    if not method.client_streaming:
        data = message_of(draw, method.input_type, 0)
        return [damaged(draw, data) if draw.random() < 0.7 else data]
    drawn = [message_of(draw, method.input_type, place) for place in range(draw.randrange(1, FRAMES))]
    match draw.randrange(10):
        case 0:
            draw.shuffle(drawn)
        case 1:
            drawn += draw.choices(drawn, k=3)
    if draw.random() < 0.5:
        drawn.append(damaged(draw, message_of(draw, method.input_type, len(drawn))))
    return drawn


@pytest.fixture
def drawn_frames() -> Callable[[random.Random, MethodDescriptor], list[bytes]]:
    return frames
