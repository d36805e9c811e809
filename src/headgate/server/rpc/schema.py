"""The messages of the native service, of health and of reflection, in a pool of their own; see `rls.schema` for why."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from headgate.server.proto_text import read

PATHS = (
    "headgate/v1/ratelimiter.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
    "grpc/reflection/v1alpha/reflection.proto",
)


def _file_descriptors() -> tuple[FileDescriptorProto, ...]:
    folder = files("headgate.server.rpc").joinpath("protos")
    return tuple(read({path: folder.joinpath(path).read_text(encoding="utf-8") for path in PATHS}, {}))


FILES = _file_descriptors()
"""What the files in `protos` describe."""
_POOL = DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of a message by its whole name, such as ``headgate.v1.CheckRequest``."""
    return GetMessageClass(_POOL.FindMessageTypeByName(name))
