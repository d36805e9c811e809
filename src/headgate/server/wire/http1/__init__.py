"""HTTP/1.1 (RFC 9112), server side: a state machine without I/O, and its asyncio protocol."""
