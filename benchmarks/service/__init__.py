"""The part of the benchmark that asks servers over the wire: ours, nginx, uvloop, uvicorn and grpcio."""
