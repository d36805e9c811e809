"""The messages of all gRPC services, as protobuf knows them: Envoy's, our own, health and reflection.

`descriptors.binpb` is what protoc reads in the .proto files beside it; a test compares them. To write it again::

    python -m tests.test_protos

What is answered on the hot path is written by hand, with `varint`, `framed`, `entry` and
`text_writer`.

The messages are in a pool of their own: other packages, such as xds-protos, put files of the same names into protobuf's
default pool, where two of them would not get along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from struct import pack
from typing import Any

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

COMPILED = "descriptors.binpb"
_SMALL = tuple([bytes([number]) for number in range(128)])
_DEEPEST = 32
"""Of lists and mappings within each other, in a `google.protobuf.Struct`."""
_SHORT = 128
"""Texts with fewer bytes have what comes before them prepared."""
_GOOGLE = (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)


def _described() -> list[FileDescriptorProto]:
    google = [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in _GOOGLE]
    compiled = files("headgate.protos").joinpath(COMPILED).read_bytes()
    return [*google, *FileDescriptorSet.FromString(compiled).file]


FILES = tuple(_described())
"""What describes the services, each file after those that it imports."""
POOL = DescriptorPool()
"""What knows all that they declare, by name."""
for _file in FILES:
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of a message by its whole name, such as ``headgate.v1.CheckRequest``."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


RateLimitRequest = message_class("envoy.service.ratelimit.v3.RateLimitRequest")
RateLimitResponse = message_class("envoy.service.ratelimit.v3.RateLimitResponse")


def varint(number: int) -> bytes:
    """Return a number that is not negative, in as few bytes as it takes."""
    if number < 128:
        return _SMALL[number]
    if number < 16_384:
        return bytes((number & 127 | 128, number >> 7))
    if number < 2_097_152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    if number < 268_435_456:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21))
    if number < 34_359_738_368:  # times since 1970 are
        return bytes(
            (
                number & 127 | 128,
                number >> 7 & 127 | 128,
                number >> 14 & 127 | 128,
                number >> 21 & 127 | 128,
                number >> 28,
            )
        )
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def framed(tag: bytes, content: bytes) -> bytes:
    """Return a field with bytes, or with a message."""
    return tag + varint(len(content)) + content


def text_writer(before: Callable[[int], bytes], after: bytes = b"") -> Callable[[str], bytes]:
    """Return what writes a text, given what comes before one of so many bytes, and after it."""
    openings = [before(size) for size in range(_SHORT)]

    def write(value: str) -> bytes:
        raw = value.encode()
        size = len(raw)
        written = (openings[size] if size < _SHORT else before(size)) + raw
        return written + after if after else written

    return write


def entry(key: str, value: Any, depth: int = 0) -> bytes:
    """Return an entry of a `google.protobuf.Struct`: text, a number, a boolean, a list or a mapping."""
    return framed(b"\x0a", framed(b"\x0a", str(key).encode()) + framed(b"\x12", _value(value, depth)))


def _value(value: Any, depth: int) -> bytes:
    if isinstance(value, str):
        return framed(b"\x1a", value.encode())
    if isinstance(value, bool):
        return b"\x20\x01" if value else b"\x20\x00"
    if isinstance(value, int | float):
        return b"\x11" + pack("<d", value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return framed(b"\x2a", b"".join([entry(key, each, depth + 1) for key, each in value.items()]))
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return framed(b"\x32", b"".join([framed(b"\x0a", _value(each, depth + 1)) for each in value]))
    return b"\x08\x00" if value is None else framed(b"\x1a", str(value).encode())
