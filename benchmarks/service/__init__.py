"""The part about servers on the network: ours, nginx, uvloop, uvicorn and grpcio."""
