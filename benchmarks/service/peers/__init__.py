"""The servers that ours is held against, each a program: ``python -m benchmarks.service.peers.NAME PORT``."""
