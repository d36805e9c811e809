"""The protocols, from bytes to requests and back.

Each is a state machine without I/O, bytes in and events out, under a thin asyncio protocol (`http1`, `http2`, and
`grpc` on top of the latter), on the ports of a `listener`; all connections of a process share a `registry`. The layers
above see `messages` over HTTP and `grpc.calls` over gRPC, after `admission` has admitted them.
"""
