"""Connections of asyncio: what comes from a socket goes through a machine, and back. Nothing here knows a protocol."""
