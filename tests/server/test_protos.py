"""The messages as protobuf knows them: what is kept of the .proto files is what protoc reads in them."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from headgate.server.protos import COMPILED, FILES, message_class

FOLDER = Path(str(files("headgate.server.protos")))
PATHS = (
    "envoy/type/v3/ratelimit_unit.proto",
    "envoy/config/core/v3/base.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "headgate/v1/ratelimiter.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
    "grpc/reflection/v1alpha/reflection.proto",
)
"""Each after those that it imports."""


def compiled() -> FileDescriptorSet:
    """Return what protoc reads in the files, without the names of fields in JSON, which follow from the others."""
    google = Path(grpc_tools.__file__).parent / "_proto"
    with TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        assert protoc.main(["protoc", f"-I{FOLDER}", f"-I{google}", f"--descriptor_set_out={out}", *PATHS]) == 0
        found = FileDescriptorSet.FromString(out.read_bytes())
    for file in found.file:
        _without_json_names(file.message_type)
    return found


def _without_json_names(messages: Any) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _without_json_names(message.nested_type)


def test_what_is_kept_is_what_protoc_reads_in_the_files() -> None:
    """If this fails after a .proto file was changed: python -m tests.server.test_protos."""
    assert FileDescriptorSet.FromString((FOLDER / COMPILED).read_bytes()) == compiled()


def test_every_file_is_kept() -> None:
    written = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.proto")}
    assert written == set(PATHS) == {file.name for file in FILES if not file.name.startswith("google/")}


def test_they_get_along_with_others_of_the_same_names_in_the_default_pool() -> None:
    """As xds-protos puts them there; in a process of its own, since the default pool forgets nothing."""
    program = """
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
other = FileDescriptorProto(name="envoy/service/ratelimit/v3/rls.proto", package="envoy.service.ratelimit.v3")
other.message_type.add(name="RateLimitRequest").field.add(name="other", number=1, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
from headgate.server.protos import message_class
RateLimitRequest = message_class("envoy.service.ratelimit.v3.RateLimitRequest")
assert RateLimitRequest(domain="d").SerializeToString() == b"\\x0a\\x01d"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_fields_of_envoys_messages_have_the_numbers_of_the_protocol() -> None:
    response = message_class("envoy.service.ratelimit.v3.RateLimitResponse").DESCRIPTOR
    assert {field.name: field.number for field in response.fields} == {
        "overall_code": 1,
        "statuses": 2,
        "response_headers_to_add": 3,
        "request_headers_to_add": 4,
        "raw_body": 5,
        "dynamic_metadata": 6,
        "quota": 7,
    }
    request = message_class("envoy.service.ratelimit.v3.RateLimitRequest").DESCRIPTOR
    descriptor: Any = request.fields_by_name["descriptors"].message_type
    assert {field.name: field.number for field in descriptor.fields} == {
        "entries": 1,
        "limit": 2,
        "hits_addend": 3,
        "is_negative_hits": 4,
    }


if __name__ == "__main__":
    (FOLDER / COMPILED).write_bytes(compiled().SerializeToString(deterministic=True))
