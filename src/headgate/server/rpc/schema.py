"""The messages of the native service, of health and of reflection, in a pool of their own; see `rls.schema` for why."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from headgate.server.proto_text import read

_REFLECTION, _OLD_REFLECTION = (f"grpc/reflection/{version}/reflection.proto" for version in ("v1", "v1alpha"))
_WRITTEN = ("headgate/v1/ratelimiter.proto", "grpc/health/v1/health.proto", _REFLECTION)


def _texts() -> dict[str, str]:
    folder = files("headgate.server.rpc").joinpath("protos")
    texts = {path: folder.joinpath(path).read_text(encoding="utf-8") for path in _WRITTEN}
    texts[_OLD_REFLECTION] = texts[_REFLECTION].replace(".v1;", ".v1alpha;")  # they differ in their names alone
    return texts


TEXTS = _texts()
"""The files, by path."""
FILES: tuple[FileDescriptorProto, ...] = tuple(read(TEXTS, {}))
"""What they describe."""
_POOL = DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of a message by its whole name, such as ``headgate.v1.CheckRequest``."""
    return GetMessageClass(_POOL.FindMessageTypeByName(name))
