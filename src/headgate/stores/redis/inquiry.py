"""Drives inquiries in an event loop: a short conversation with each server that is asked."""

from __future__ import annotations

import asyncio

import hiredis

from headgate.core.errors import StoreError
from headgate.stores.redis import wire
from headgate.stores.redis.address import Address
from headgate.stores.redis.discovery import Inquiry, T


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
            if address.path:
                reader, writer = await asyncio.open_unix_connection(address.path)
            else:
                reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
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
