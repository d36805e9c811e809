"""The protocols, from bytes to requests and back.

Each is a machine without I/O, bytes in and events out, under a thin asyncio protocol (`http1`, `http2`, and `grpc` on
top of the latter), on the ports of a `listener`; all connections of a process share a `registry`. What is above the
wire sees `messages` over HTTP and `grpc.calls` over gRPC, whatever carried them; before either, `admission` is asked.
"""
