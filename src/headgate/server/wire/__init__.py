"""The protocols, from bytes to requests and back.

Each is a machine without I/O, bytes in and events out (`http1`, `http2`), under a thin transport (`transports`), on the
ports of a `listener`. What is above the wire sees `messages` over HTTP and `grpc.calls` over gRPC, whatever carried
them; before either, `admission` is asked.
"""
