"""A client that learns all methods by reflection, like grpcurl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from headgate.protos import message_class

SECONDS = 30
_V1 = "grpc.reflection.v1"


class Client:
    """Calls methods by name, with messages given as dicts of their fields."""

    def __init__(self, port: int, version: str = _V1) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.version = version
        self._request = message_class(f"{version}.ServerReflectionRequest")
        self._response = message_class(f"{version}.ServerReflectionResponse")
        self._pool, self._known = DescriptorPool(), set[str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def reflect(self, *questions: dict[str, Any]) -> list[Any]:
        ask = self.channel.stream_stream(
            f"/{self.version}.ServerReflection/ServerReflectionInfo",
            request_serializer=self._request.SerializeToString,
            response_deserializer=self._response.FromString,
        )
        return list(ask(iter([self._request(**question) for question in questions]), timeout=SECONDS))

    def services(self) -> list[str]:
        (answer,) = self.reflect({"list_services": "*"})
        return [service.name for service in answer.list_services_response.service]

    def message(self, name: str) -> Any:
        return GetMessageClass(self._pool.FindMessageTypeByName(name))

    def learn(self, symbol: str) -> Any:
        (answer,) = self.reflect({"file_containing_symbol": symbol})
        files = [FileDescriptorProto.FromString(raw) for raw in answer.file_descriptor_response.file_descriptor_proto]
        assert files, answer
        for file in _in_order(files):
            if file.name not in self._known:
                self._known.add(file.name)
                self._pool.AddSerializedFile(file.SerializeToString())
        return self._pool.FindServiceByName(symbol)

    def call(self, service: str, method: str, metadata: Iterable[tuple[str, str]] = (), /, **fields: Any) -> Any:
        described = self.learn(service).methods_by_name[method]
        ask: Any = self.channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        return ask(GetMessageClass(described.input_type)(**fields), timeout=SECONDS, metadata=tuple(metadata))

    def watch(self, service: str) -> Iterator[Any]:
        described = self.learn("grpc.health.v1.Health").methods_by_name["Watch"]
        ask: Any = self.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        answers: Iterator[Any] = ask(GetMessageClass(described.input_type)(service=service), timeout=SECONDS)
        return answers


def _in_order(files: list[FileDescriptorProto]) -> list[FileDescriptorProto]:
    named, ordered = {file.name: file for file in files}, dict[str, FileDescriptorProto]()

    def add(file: FileDescriptorProto) -> None:
        for needed in file.dependency:
            add(named[needed])
        ordered.setdefault(file.name, file)

    for file in files:
        add(file)
    return list(ordered.values())
