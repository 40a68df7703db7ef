"""Tensors on the wire: raw or typed contents, or a place in shared memory, and the values that they stand for."""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.api.inference import inference_pb2 as pb
from headrace.core.errors import InvalidRequest
from headrace.gateway.encoding_codec import MAX_TEXTS
from headrace.gateway.kserve.parameters import UINT64, Parameters

BYTES = "BYTES"
MAX_DIMENSIONS = 4

_NUMBERS: Mapping[str, tuple[str, str]] = {
    "BOOL": ("?", "bool_contents"),
    "INT32": ("<i4", "int_contents"),
    "INT64": ("<i8", "int64_contents"),
    "UINT32": ("<u4", "uint_contents"),
    "FP32": ("<f4", "fp32_contents"),
}
DATATYPES = (BYTES, *_NUMBERS)

Values = Sequence[bytes] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """`values` in row-major order: a sequence of bytes for BYTES, else a flat array of the datatype."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Values


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of a registered region."""

    region: str
    offset: int
    byte_size: int


ReadPlace = Callable[[Place, str], bytes]
"""The bytes there; the string names the tensor in errors."""
WritePlace = Callable[[Place, str, bytes], None]


def read_inputs(request: pb.ModelInferRequest, read: ReadPlace) -> dict[str, Tensor]:
    """By name. Raises InvalidRequest that names the tensor and what it may be."""
    inputs: dict[str, Tensor] = {}
    raw = list(request.raw_input_contents)
    for position, given in enumerate(request.inputs):
        name = given.name
        field = f"inputs[{position}]"
        if name in inputs:
            raise _wrong(field, "has the name of another", "each name once")
        if given.datatype not in DATATYPES:
            raise _wrong(f"{field}.datatype", "is unknown here", ", ".join(DATATYPES))
        shape = tuple(given.shape)
        if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
            raise _wrong(f"{field}.shape", "cannot be", f"{MAX_DIMENSIONS} dimensions at most, none below 0")
        place = place_of(given.parameters, f"{field}.parameters")
        if given.HasField("contents") and (place is not None or request.raw_input_contents):
            raise _wrong(f"{field}.contents", "are there beside raw contents or shared memory", "one of them")
        if place is not None:
            values = _from_bytes(given.datatype, math.prod(shape), read(place, field), field)
        elif request.raw_input_contents:
            if not raw:
                raise _wrong("raw_input_contents", "are fewer than the inputs", "one for each input")
            values = _from_bytes(given.datatype, math.prod(shape), raw.pop(0), field)
        else:
            values = _from_contents(given.datatype, math.prod(shape), given.contents, field)
        inputs[name] = Tensor(name, given.datatype, shape, values)
    if raw:
        raise _wrong("raw_input_contents", "are more than the inputs", "one for each input")
    return inputs


def place_of(given: Mapping[str, pb.InferParameter], where: str) -> Place | None:
    """The place that a tensor's parameters name; None where they name none. Refuses any other parameter."""
    parameters = Parameters(given, where)
    region = parameters.text("shared_memory_region")
    offset = parameters.integer("shared_memory_offset", UINT64)
    byte_size = parameters.integer("shared_memory_byte_size", UINT64)
    parameters.finish()
    if region is None and byte_size is None and offset is None:
        return None
    if region is None or byte_size is None:
        raise _wrong(where, "name half a place", "shared_memory_region and shared_memory_byte_size")
    return Place(region, offset or 0, byte_size)


def text_of(value: bytes, field: str) -> str:
    """An element of BYTES as text. Raises InvalidRequest."""
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{field} is not valid UTF-8", field=field, limit="UTF-8") from None


def is_typed(request: pb.ModelInferRequest) -> bool:
    """Whether its inputs came as typed contents; then so go the outputs."""
    return any(given.HasField("contents") for given in request.inputs)


def add_output(
    response: pb.ModelInferResponse, tensor: Tensor, typed: bool, place: Place | None, write: WritePlace
) -> None:
    """Appends a tensor, to its place where it has one. Raises InvalidRequest where it does not fit there."""
    output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    if place is not None:
        data = to_bytes(tensor)
        write(place, tensor.name, data)
        output.parameters["shared_memory_region"].string_param = place.region
        output.parameters["shared_memory_byte_size"].int64_param = len(data)
        if place.offset:
            output.parameters["shared_memory_offset"].int64_param = place.offset
        if not typed:
            response.raw_output_contents.append(b"")
    elif not typed:
        response.raw_output_contents.append(to_bytes(tensor))
    elif isinstance(tensor.values, np.ndarray):
        getattr(output.contents, _NUMBERS[tensor.datatype][1]).extend(tensor.values.tolist())
    else:
        output.contents.bytes_contents.extend(tensor.values)


def to_bytes(tensor: Tensor) -> bytes:
    """The raw form: little-endian, a BYTES element after its length as uint32."""
    if isinstance(tensor.values, np.ndarray):
        return tensor.values.astype(_NUMBERS[tensor.datatype][0], copy=False).tobytes()
    return b"".join(part for value in tensor.values for part in (struct.pack("<I", len(value)), value))


def _from_bytes(datatype: str, count: int, data: bytes, field: str) -> Values:
    if datatype != BYTES:
        dtype = np.dtype(_NUMBERS[datatype][0])
        if len(data) != count * dtype.itemsize:
            raise _wrong(field, f"has {len(data)} bytes", f"{count * dtype.itemsize} bytes, by its shape")
        return np.frombuffer(data, dtype)
    _check_count(count, field)
    values, at = [], 0
    for _ in range(count):
        if at + 4 > len(data):
            break
        (length,) = struct.unpack_from("<I", data, at)
        values.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    if len(values) != count or at > len(data):
        raise _wrong(field, "ends early", f"{count} elements, each after its length as uint32")
    if at != len(data):
        raise _wrong(field, "has bytes left", f"{count} elements, by its shape")
    return values


def _from_contents(datatype: str, count: int, contents: pb.InferTensorContents, field: str) -> Values:
    name = "bytes_contents" if datatype == BYTES else _NUMBERS[datatype][1]
    if any(other.name != name for other, _ in contents.ListFields()):
        raise _wrong(f"{field}.contents", f"are not {name}", f"{name}, by its datatype")
    values = getattr(contents, name)
    if len(values) != count:
        raise _wrong(field, f"has {len(values)} elements", f"{count}, by its shape")
    if datatype == BYTES:
        _check_count(count, field)
        return list(values)
    return np.array(values, _NUMBERS[datatype][0])


def _check_count(count: int, field: str) -> None:
    if count > MAX_TEXTS:
        raise _wrong(field, f"has {count} elements", f"{MAX_TEXTS} elements of BYTES at most")


def _wrong(field: str, what: str, limit: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {what}; must be {limit}", field=field, limit=limit)
