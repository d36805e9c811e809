"""Reads .proto files, as far as ours go: messages, enums, oneofs, maps and methods of proto3.

So the files are the only place where messages are described, and no generated code or binary has to be kept beside
them. That protoc reads the same in them is tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_TOKEN = re.compile(r'"[^"]*"|[\w.]+|[{}()<>=;,]')
_COMMENT = re.compile(r"//.*")
_SCALARS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}
_ENUM, _MESSAGE = FieldDescriptorProto.TYPE_ENUM, FieldDescriptorProto.TYPE_MESSAGE


def read(texts: Mapping[str, str], known: Mapping[str, bool]) -> list[FileDescriptorProto]:
    """Return the descriptors of files, given by path; `known` are types from elsewhere, and whether each is an enum."""
    files = [_Reader(text).file(path) for path, text in texts.items()]
    types = dict(known)
    for file in files:
        types.update(_declared(file.package, file.message_type, file.enum_type))
    for file in files:
        for message in file.message_type:
            _resolve(message, file.package, types)
        for service in file.service:
            for method in service.method:
                method.input_type = _found(method.input_type, file.package, types)
                method.output_type = _found(method.output_type, file.package, types)
    return files


class _Reader:
    """Goes through the words of one file."""

    def __init__(self, text: str) -> None:
        self._words: Iterator[str] = iter(_TOKEN.findall(_COMMENT.sub("", text)))

    def file(self, path: str) -> FileDescriptorProto:
        file = FileDescriptorProto(name=path)
        for word in self._words:
            if word == "syntax":
                self._expect("=")
                file.syntax = self._value()
            elif word == "package":
                file.package = self._value()
            elif word == "import":
                file.dependency.append(self._value())
            elif word == "message":
                self._message(file.message_type.add(name=next(self._words)))
            elif word == "enum":
                self._enum(file.enum_type.add(name=next(self._words)))
            else:
                self._service(file, word)
        return file

    def _message(self, message: DescriptorProto) -> None:
        for word in self._block():
            if word == "message":
                self._message(message.nested_type.add(name=next(self._words)))
            elif word == "enum":
                self._enum(message.enum_type.add(name=next(self._words)))
            elif word == "oneof":
                index = len(message.oneof_decl)
                message.oneof_decl.add(name=next(self._words))
                for kind in self._block():
                    self._field(message, kind, FieldDescriptorProto.LABEL_OPTIONAL).oneof_index = index
            elif word == "map":
                self._map(message)
            elif word == "repeated":
                self._field(message, next(self._words), FieldDescriptorProto.LABEL_REPEATED)
            else:
                self._field(message, word, FieldDescriptorProto.LABEL_OPTIONAL)

    def _field(
        self, message: DescriptorProto, kind: str, label: FieldDescriptorProto.Label.ValueType
    ) -> FieldDescriptorProto:
        field = message.field.add(name=next(self._words), label=label)
        self._expect("=")
        field.number = int(self._value())
        self._typed(field, kind)
        return field

    @staticmethod
    def _typed(field: FieldDescriptorProto, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type_name = kind

    def _map(self, message: DescriptorProto) -> None:
        """Read a map, which is a list of entries: messages of their own, with a key and a value."""
        self._expect("<")
        kinds = [next(self._words)]
        self._expect(",")
        kinds.append(next(self._words))
        self._expect(">")
        field = self._field(message, "", FieldDescriptorProto.LABEL_REPEATED)
        field.type_name = "".join([part.capitalize() for part in field.name.split("_")]) + "Entry"
        entry = message.nested_type.add(name=field.type_name)
        entry.options.map_entry = True
        for number, (name, kind) in enumerate(zip(("key", "value"), kinds, strict=True), 1):
            self._typed(entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL), kind)

    def _enum(self, enum: EnumDescriptorProto) -> None:
        for name in self._block():
            self._expect("=")
            enum.value.add(name=name, number=int(self._value()))

    def _service(self, file: FileDescriptorProto, word: str) -> None:
        self._check("service", word)
        service = file.service.add(name=next(self._words))
        for rpc in self._block():
            self._check("rpc", rpc)
            method = service.method.add(name=next(self._words))
            self._expect("(")
            method.input_type, streams = self._kind()
            if streams:
                method.client_streaming = True
            for expected in (")", "returns", "("):
                self._expect(expected)
            method.output_type, streams = self._kind()
            if streams:
                method.server_streaming = True
            for expected in (")", ";"):
                self._expect(expected)

    def _kind(self) -> tuple[str, bool]:
        """Return a type of messages, and whether there may be many of them."""
        word = next(self._words)
        return (next(self._words), True) if word == "stream" else (word, False)

    def _block(self) -> Iterator[str]:
        """Yield the first word of each thing between braces."""
        self._expect("{")
        return iter(self._words.__next__, "}")

    def _value(self) -> str:
        """Return the word before a semicolon."""
        word = next(self._words)
        self._expect(";")
        return word.strip('"')

    def _expect(self, expected: str) -> None:
        self._check(expected, next(self._words))

    @staticmethod
    def _check(expected: str, found: str) -> None:
        if found != expected:
            raise SyntaxError(f"{expected!r} was expected, not {found!r}")


def _declared(
    scope: str, messages: Iterable[DescriptorProto], enums: Iterable[EnumDescriptorProto]
) -> Iterator[tuple[str, bool]]:
    for enum in enums:
        yield f".{scope}.{enum.name}", True
    for message in messages:
        name = f"{scope}.{message.name}"
        yield f".{name}", False
        yield from _declared(name, message.nested_type, message.enum_type)


def _resolve(message: DescriptorProto, scope: str, types: Mapping[str, bool]) -> None:
    scope = f"{scope}.{message.name}"
    for field in message.field:
        if field.type_name:
            field.type_name = _found(field.type_name, scope, types)
            field.type = _ENUM if types[field.type_name] else _MESSAGE
    for nested in message.nested_type:
        _resolve(nested, scope, types)


def _found(name: str, scope: str, types: Mapping[str, bool]) -> str:
    """Return the whole name of a type, which is looked for from the innermost scope to the outermost."""
    join: Callable[[list[str]], str] = ".".join
    outer = scope.split(".")
    for depth in range(len(outer), -1, -1):
        whole = f".{join([*outer[:depth], name])}"
        if whole in types:
            return whole
    raise SyntaxError(f"{name!r} is not declared")
