"""What we read in our .proto files is what protoc reads."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from headgate.server.rpc import schema


def test_protoc_reads_the_same_in_our_files(tmp_path: Path) -> None:
    out = tmp_path / "set"
    for path, text in schema.TEXTS.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert protoc.main(["protoc", f"-I{tmp_path}", f"-o{out}", *schema.TEXTS]) == 0
    compiled = FileDescriptorSet.FromString(out.read_bytes()).file
    for file in compiled:
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
            for nested in message.nested_type:
                for field in nested.field:
                    field.ClearField("json_name")
    assert list(compiled) == list(schema.FILES)
