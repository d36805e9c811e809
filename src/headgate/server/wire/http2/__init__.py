"""HTTP/2 (RFC 9113), server side: a state machine without I/O, and its asyncio protocol."""
