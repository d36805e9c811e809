"""Connects in an event loop, and drives inquiries: a short conversation with each server that is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import hiredis

from headgate.core.errors import StoreError
from headgate.stores.redis import wire
from headgate.stores.redis.address import Address
from headgate.stores.redis.discovery import Inquiry, T

Made = TypeVar("Made")


async def connected(
    address: Address, by_path: Callable[[str], Awaitable[Made]], by_place: Callable[..., Awaitable[Made]]
) -> Made:
    """Return the connection to a server that one of two functions makes. Raises OSError, ValueError."""
    if address.path:
        return await by_path(address.path)
    options = {"ssl": address.tls.context(), "server_hostname": address.host} if address.tls else {}
    error: OSError = OSError("no address")
    for *_, place in await address.names.places_soon(address.host, address.port):
        try:
            return await by_place(place[0], place[1], **options)
        except OSError as failure:
            error = failure
    raise error


async def inquire(inquiry: Inquiry[T], patience: float) -> T:
    """Drive `inquiry`; each server gets `patience` seconds."""
    try:
        address, question = next(inquiry)
        while True:
            address, question = inquiry.send(await _inquired(address, question, patience))
    except StopIteration as stop:
        found: T = stop.value
        return found


async def _inquired(address: Address, question: bytes, patience: float) -> object:
    """Return the reply of a server, or the exception that came instead."""
    try:
        async with asyncio.timeout(patience):
            reader, writer = await connected(address, asyncio.open_unix_connection, asyncio.open_connection)
            try:
                return await _conversed(address, question, reader, writer)
            finally:
                writer.close()
    except StoreError as error:
        return error
    except (OSError, ValueError, hiredis.ProtocolError) as error:  # ValueError: a host that cannot be a name
        return wire.unconnected(address, error)


async def _conversed(
    address: Address, question: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> object:
    replies, reply = hiredis.Reader(), None
    for command in (*wire.introduction(address), question):
        writer.write(command)
        while (reply := replies.gets()) is False:
            data = await reader.read(65_536)
            if not data:
                raise ConnectionResetError("closed by the server")
            replies.feed(data)
        if isinstance(reply, Exception):
            return wire.refusal(address, reply)
    return reply
