"""Server reflection, ``grpc.reflection.v1`` and its older twin ``v1alpha``: tools learn from it what can be called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

from headgate.protos import message_class
from headgate.server.wire.grpc.calls import MessageStream, RpcError, StatusCode

VERSIONS = ("grpc.reflection.v1", "grpc.reflection.v1alpha")


class Library:
    """Files that describe services, by name and by what is in them."""

    def __init__(self, described: Iterable[FileDescriptorProto]) -> None:
        files = {file.name: file for file in described}
        self.services = sorted([_joined(file.package, one.name) for file in files.values() for one in file.service])
        self._encoded = {name: file.SerializeToString() for name, file in files.items()}
        self._needed = {name: tuple(file.dependency) for name, file in files.items()}
        self._holding = {symbol: file.name for file in files.values() for symbol in _symbols(file)}

    def holding(self, symbol: str) -> str | None:
        """Return the name of the file that declares something; it begins without a dot."""
        return self._holding.get(symbol)

    def with_needed(self, name: str) -> Sequence[bytes] | None:
        """Return a file and all that it imports, the file first; None if it is not known."""
        if name not in self._encoded:
            return None
        found, waiting = [name], [name]
        while waiting:
            for needed in self._needed[waiting.pop()]:
                if needed in self._encoded and needed not in found:
                    found.append(needed)
                    waiting.append(needed)
        return [self._encoded[each] for each in found]


class Reflection:
    """The method of one version of the service."""

    def __init__(self, library: Library, version: str) -> None:
        self._library = library
        self._request = message_class(f"{version}.ServerReflectionRequest")
        self._response = message_class(f"{version}.ServerReflectionResponse")

    async def info(self, stream: MessageStream) -> None:
        """Answer questions until the client has no more."""
        async for message in stream:
            try:
                asked = self._request.FromString(message)
            except DecodeError:
                raise RpcError(StatusCode.INVALID_ARGUMENT, "the message is not a ServerReflectionRequest") from None
            answer = self._response(valid_host=asked.host, original_request=asked, **self._answer(asked))
            await stream.send(answer.SerializeToString())

    def _answer(self, asked: Any) -> dict[str, Any]:
        kind = asked.WhichOneof("message_request")
        if kind == "list_services":
            names = [{"name": name} for name in self._library.services]
            return {"list_services_response": {"service": names}}
        if kind == "file_by_filename":
            return self._files(asked.file_by_filename, f"there is no file {asked.file_by_filename[:200]!a}")
        if kind == "file_containing_symbol":
            symbol = asked.file_containing_symbol
            return self._files(self._library.holding(symbol), f"nothing here is called {symbol[:200]!a}")
        if kind == "all_extension_numbers_of_type":
            return self._extensions(asked.all_extension_numbers_of_type)
        if kind == "file_containing_extension":
            return _error(StatusCode.NOT_FOUND, "nothing here is extended")
        return _error(StatusCode.INVALID_ARGUMENT, "the message asks nothing that is known here")

    def _extensions(self, name: str) -> dict[str, Any]:
        """Return the numbers of the extensions of a message: proto3 has none."""
        if self._library.holding(name) is None:
            return _error(StatusCode.NOT_FOUND, f"nothing here is called {name[:200]!a}")
        return {"all_extension_numbers_response": {"base_type_name": name}}

    def _files(self, name: str | None, missing: str) -> dict[str, Any]:
        files = None if name is None else self._library.with_needed(name)
        if files is None:
            return _error(StatusCode.NOT_FOUND, missing)
        return {"file_descriptor_response": {"file_descriptor_proto": files}}


def _error(code: StatusCode, message: str) -> dict[str, Any]:
    return {"error_response": {"error_code": int(code), "error_message": message}}


def _symbols(file: FileDescriptorProto) -> Iterator[str]:
    """Yield the whole names of all that a file declares."""
    yield from _inside(file.package, file.message_type)
    for enum in file.enum_type:
        yield _joined(file.package, enum.name)
        yield from (_joined(file.package, value.name) for value in enum.value)
    for service in file.service:
        name = _joined(file.package, service.name)
        yield name
        yield from (f"{name}.{method.name}" for method in service.method)


def _inside(scope: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
    for message in messages:
        name = _joined(scope, message.name)
        yield name
        yield from (f"{name}.{field.name}" for field in message.field)
        for enum in message.enum_type:
            yield f"{name}.{enum.name}"
            yield from (f"{name}.{value.name}" for value in enum.value)
        yield from _inside(name, message.nested_type)


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name
