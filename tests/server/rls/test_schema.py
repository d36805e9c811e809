"""The messages as protobuf knows them."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc_tools
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from headgate.server.rls.schema import PATHS, RateLimitRequest, RateLimitResponse, file_descriptors

PROTOS = files("headgate.server.rls").joinpath("protos")


def compiled(folder: Path) -> dict[str, FileDescriptorProto]:
    """Return what protoc reads in the files."""
    result = folder / "set"
    google = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{google}", f"--descriptor_set_out={result}", *PATHS]
    assert protoc.main(arguments) == 0
    return {file.name: file for file in FileDescriptorSet.FromString(result.read_bytes()).file}


def without_json_names(message: Any) -> None:
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        without_json_names(nested)


@pytest.mark.parametrize("path", PATHS)
def test_we_read_the_files_as_protoc_does(path: str, tmp_path: Path) -> None:
    expected = compiled(tmp_path)[path]
    for message in expected.message_type:
        without_json_names(message)
    (ours,) = [file for file in file_descriptors() if file.name == path]
    assert ours == expected


def test_they_get_along_with_others_of_the_same_names_in_the_default_pool() -> None:
    """As xds-protos puts them there; in a process of its own, since the default pool forgets nothing."""
    program = """
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
other = FileDescriptorProto(name="envoy/service/ratelimit/v3/rls.proto", package="envoy.service.ratelimit.v3")
other.message_type.add(name="RateLimitRequest").field.add(name="other", number=1, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
from headgate.server.rls.schema import RateLimitRequest
assert RateLimitRequest(domain="d").SerializeToString() == b"\\x0a\\x01d"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_fields_have_the_numbers_of_the_protocol() -> None:
    numbers = {field.name: field.number for field in RateLimitResponse.DESCRIPTOR.fields}
    assert numbers == {
        "overall_code": 1,
        "statuses": 2,
        "response_headers_to_add": 3,
        "request_headers_to_add": 4,
        "raw_body": 5,
        "dynamic_metadata": 6,
        "quota": 7,
    }
    descriptor: Any = RateLimitRequest.DESCRIPTOR.fields_by_name["descriptors"].message_type
    assert {field.name: field.number for field in descriptor.fields} == {
        "entries": 1,
        "limit": 2,
        "hits_addend": 3,
        "is_negative_hits": 4,
    }
