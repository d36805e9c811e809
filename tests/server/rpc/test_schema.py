"""What we read in our .proto files is what protoc reads."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from headgate.server.rpc import schema


def test_protoc_reads_the_same_in_our_files(tmp_path: Path) -> None:
    out, folder = tmp_path / "set", Path(str(files("headgate.server.rpc").joinpath("protos")))
    assert protoc.main(["protoc", f"-I{folder}", f"-o{out}", *schema.PATHS]) == 0
    compiled = FileDescriptorSet.FromString(out.read_bytes()).file
    for file in compiled:
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
            for nested in message.nested_type:
                for field in nested.field:
                    field.ClearField("json_name")
    assert list(compiled) == list(schema.FILES)
