"""Server reflection for tools: ``grpc.reflection.v1``, and ``v1alpha``, which is identical."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from headgate.protos import FILES, POOL, message_class
from headgate.server.wire.grpc.calls import MessageStream, RpcError, StatusCode

VERSIONS = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
SERVICES = sorted([f"{file.package}.{service.name}" for file in FILES for service in file.service])


class Reflection:
    """The method of one version of the service."""

    def __init__(self, version: str) -> None:
        self._request = message_class(f"{version}.ServerReflectionRequest")
        self._response = message_class(f"{version}.ServerReflectionResponse")

    async def info(self, stream: MessageStream) -> None:
        async for message in stream:
            try:
                request = self._request.FromString(message)
            except DecodeError:
                raise RpcError(StatusCode.INVALID_ARGUMENT, "the message is not a ServerReflectionRequest") from None
            response = self._response(valid_host=request.host, original_request=request, **_response(request))
            await stream.send(response.SerializeToString())


def _response(request: Any) -> dict[str, Any]:
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        return {"list_services_response": {"service": [{"name": name} for name in SERVICES]}}
    if kind in {"file_by_filename", "file_containing_symbol", "all_extension_numbers_of_type"}:
        name = getattr(request, kind)
        try:
            file = POOL.FindFileByName(name) if kind == "file_by_filename" else _declaring(name)
        except KeyError:
            kind = "file" if kind == "file_by_filename" else "symbol"
            return _error(StatusCode.NOT_FOUND, f"the {kind} {name[:200]!a} does not exist")
        if kind == "all_extension_numbers_of_type":
            return {"all_extension_numbers_response": {"base_type_name": name}}  # without a number: proto3 has none
        return {"file_descriptor_response": {"file_descriptor_proto": _with_needed(file)}}
    if kind == "file_containing_extension":
        return _error(StatusCode.NOT_FOUND, "this server has no extensions")
    return _error(StatusCode.INVALID_ARGUMENT, "unknown kind of request")


def _declaring(symbol: str) -> FileDescriptor:
    """Return the file that declares a symbol, whose name begins without a dot. Raises KeyError."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:  # it does not exist, or is a method
        return POOL.FindMethodByName(symbol).containing_service.file


def _with_needed(file: FileDescriptor) -> list[bytes]:
    """Return a file, and then all that it imports."""
    found, waiting = {file.name: file.serialized_pb}, [file]
    while waiting:
        for needed in waiting.pop().dependencies:
            if needed.name not in found:
                found[needed.name] = needed.serialized_pb
                waiting.append(needed)
    return [*found.values()]


def _error(code: StatusCode, message: str) -> dict[str, Any]:
    return {"error_response": {"error_code": int(code), "error_message": message}}
