"""A GGUF file's header, checked before anything else reads it: every count, length and offset lies within the file.

Readers of the format, the Python library's and OpenVINO's, believe what a header says. After the specification at
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the bounds are ours, generous to real files.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from headrace.core.errors import InvalidRequest

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_FIELDS = 65_536
MAX_TENSORS = 1_048_576
MAX_ELEMENTS = 16 * 2**20
"""Of all arrays together: vocabularies and merges have some hundred thousand."""
MAX_NAME_BYTES = 65_535
MAX_TEXT_BYTES = 64 * 2**20
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 2**20
DEFAULT_ALIGNMENT = 32

STRING, ARRAY, UINT32 = 8, 9, 4
SCALAR_BYTES: Mapping[int, int] = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Size of a value by the number of its type."""

_SIZES = {kind.value: sizes for kind, sizes in GGML_QUANT_SIZES.items() if isinstance(kind, GGMLQuantizationType)}


class _Unsound(Exception):
    pass


def check_header(path: Path) -> None:
    """Raises InvalidRequest that says what is wrong, OSError where the file cannot be read."""
    if path.stat().st_size == 0:
        raise InvalidRequest(f"{path} is no readable GGUF file: it is empty", field="source")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            _check(_Cursor(data))
        except _Unsound as error:
            raise InvalidRequest(f"{path} is no readable GGUF file: {error}", field="source") from None


class _Cursor:
    """Reads forward; never past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.size = len(data)
        self.at = 0

    def skip(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.size - self.at:
            raise _Unsound(f"{what} goes past its end")
        self.at += num_bytes

    def bytes(self, num_bytes: int, what: str) -> bytes:
        self.skip(num_bytes, what)
        return self._data[self.at - num_bytes : self.at]

    def uint32(self, what: str) -> int:
        return int(struct.unpack("<I", self.bytes(4, what))[0])

    def uint64(self, what: str) -> int:
        return int(struct.unpack("<Q", self.bytes(8, what))[0])

    def name(self, what: str) -> str:
        length = _bounded(self.uint64(what), MAX_NAME_BYTES, f"length of {what}")
        try:
            return self.bytes(length, what).decode()
        except UnicodeDecodeError:
            raise _Unsound(f"{what} is not UTF-8") from None


def _check(cursor: _Cursor) -> None:
    if cursor.bytes(4, "magic") != MAGIC:
        raise _Unsound("GGUF magic invalid")
    if (version := cursor.uint32("version")) not in VERSIONS:
        raise _Unsound(f"its version is {version}, known are {', '.join(map(str, VERSIONS))} in little-endian order")
    num_tensors = _bounded(cursor.uint64("count"), MAX_TENSORS, "number of tensors")
    num_fields = _bounded(cursor.uint64("count"), MAX_FIELDS, "number of fields")
    alignment = _fields(cursor, num_fields)
    ends = [_tensor(cursor, alignment) for _ in range(num_tensors)]
    begin = -(-cursor.at // alignment) * alignment
    if ends and begin + max(ends) > cursor.size:
        raise _Unsound("a tensor's weights go past its end")


def _fields(cursor: _Cursor, num_fields: int) -> int:
    """Passes the metadata over; the alignment that it names."""
    alignment, num_elements, seen = DEFAULT_ALIGNMENT, 0, set[str]()
    for _ in range(num_fields):
        name = cursor.name("a field's name")
        if name in seen:
            raise _Unsound(f"field {name!r} is there twice")
        seen.add(name)
        kind = cursor.uint32("a field's type")
        if name == "general.alignment":
            if kind != UINT32:
                raise _Unsound("general.alignment is no uint32")
            alignment = cursor.uint32(name)
            if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
                raise _Unsound(f"general.alignment is {alignment}, no power of two in 8..{MAX_ALIGNMENT}")
        elif kind == ARRAY:
            of = cursor.uint32("an array's type")
            length = cursor.uint64("an array's length")
            num_elements = _bounded(num_elements + length, MAX_ELEMENTS, "number of elements in arrays")
            _array(cursor, of, length)
        else:
            _value(cursor, kind)
    return alignment


def _array(cursor: _Cursor, kind: int, length: int) -> None:
    if kind == STRING:
        for _ in range(length):
            _value(cursor, STRING)
    elif kind in SCALAR_BYTES:
        cursor.skip(length * SCALAR_BYTES[kind], "an array")
    else:
        raise _Unsound(f"an array is of type {kind}")


def _value(cursor: _Cursor, kind: int) -> None:
    if kind == STRING:
        cursor.skip(_bounded(cursor.uint64("a text"), MAX_TEXT_BYTES, "length of a text"), "a text")
    elif kind in SCALAR_BYTES:
        cursor.skip(SCALAR_BYTES[kind], "a value")
    else:
        raise _Unsound(f"a field is of type {kind}")


def _tensor(cursor: _Cursor, alignment: int) -> int:
    """Passes one's description over; where its weights end, counted from where all weights begin."""
    name = cursor.name("a tensor's name")
    num_dimensions = _bounded(cursor.uint32("a tensor"), MAX_DIMENSIONS, f"number of dimensions of {name!r}")
    num_weights = 1
    dimensions = [cursor.uint64("a tensor") for _ in range(num_dimensions)]
    for size in dimensions:
        num_weights = _bounded(num_weights * size, 2**48, f"number of weights of {name!r}")
    kind = cursor.uint32("a tensor")
    offset = cursor.uint64("a tensor")
    if kind not in _SIZES:
        raise _Unsound(f"tensor {name!r} is of type {kind}")
    block, block_bytes = map(int, _SIZES[kind])
    if dimensions and dimensions[0] % block:
        raise _Unsound(f"tensor {name!r} has rows of {dimensions[0]} weights in blocks of {block}")
    if offset % alignment:
        raise _Unsound(f"tensor {name!r} is not aligned")
    return offset + num_weights // block * block_bytes


def _bounded(value: int, most: int, what: str) -> int:
    if value > most:
        raise _Unsound(f"{what} is {value}, at most {most}")
    return value
