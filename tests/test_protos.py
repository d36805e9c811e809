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

from headgate.protos import COMPILED, FILES, message_class

FOLDER = Path(str(files("headgate.protos")))
PATHS = (
    "envoy/type/v3/ratelimit_unit.proto",
    "envoy/config/core/v3/base.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/config/core/v3/address.proto",
    "envoy/type/v3/http_status.proto",
    "google/rpc/status.proto",
    "envoy/service/auth/v3/attribute_context.proto",
    "envoy/service/auth/v3/external_auth.proto",
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
    """If this fails after a .proto file was changed: python -m tests.test_protos."""
    assert FileDescriptorSet.FromString((FOLDER / COMPILED).read_bytes()) == compiled()


def test_every_file_is_kept() -> None:
    written = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.proto")}
    assert written == set(PATHS) == {file.name for file in FILES if not file.name.startswith("google/protobuf/")}


def test_they_get_along_with_others_of_the_same_names_in_the_default_pool() -> None:
    """As xds-protos puts them there; in a process of its own, since the default pool forgets nothing."""
    program = """
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
other = FileDescriptorProto(name="envoy/service/ratelimit/v3/rls.proto", package="envoy.service.ratelimit.v3")
other.message_type.add(name="RateLimitRequest").field.add(name="other", number=1, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
from headgate.protos import message_class
RateLimitRequest = message_class("envoy.service.ratelimit.v3.RateLimitRequest")
assert RateLimitRequest(domain="d").SerializeToString() == b"\\x0a\\x01d"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


NUMBERS = {
    "ratelimit.v3.RateLimitRequest": "domain=1 descriptors=2 hits_addend=3",
    "ratelimit.v3.RateLimitResponse": "overall_code=1 statuses=2 response_headers_to_add=3 request_headers_to_add=4 "
    "raw_body=5 dynamic_metadata=6 quota=7",
    "auth.v3.AttributeContext": "source=1 request=4 context_extensions=10 metadata_context=11",
    "auth.v3.AttributeContext.HttpRequest": "method=2 headers=3 path=4 host=5 header_map=13",
    "auth.v3.OkHttpResponse": "headers=2 headers_to_remove=5 response_headers_to_add=6 query_parameters_to_remove=8",
    "auth.v3.DeniedHttpResponse": "status=1 headers=2 body=3",
    "auth.v3.CheckResponse": "status=1 denied_response=2 ok_response=3 dynamic_metadata=4",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor": "entries=1 limit=2 hits_addend=3 is_negative_hits=4",
    "envoy.config.core.v3.SocketAddress": "address=2 port_value=3",
    "envoy.config.core.v3.Address": "socket_address=1 pipe=2",
    "envoy.config.core.v3.HeaderValue": "key=1 value=2 raw_value=3",
    "envoy.config.core.v3.HeaderValueOption": "header=1 append_action=3",
    "envoy.config.core.v3.Metadata": "filter_metadata=1",
}


def test_fields_of_envoys_messages_have_the_numbers_of_the_protocol() -> None:
    for name, numbers in NUMBERS.items():
        fields = message_class(name if name.startswith("envoy") else f"envoy.service.{name}").DESCRIPTOR.fields
        assert " ".join([f"{field.name}={field.number}" for field in fields]) == numbers, name


if __name__ == "__main__":
    (FOLDER / COMPILED).write_bytes(compiled().SerializeToString(deterministic=True))
