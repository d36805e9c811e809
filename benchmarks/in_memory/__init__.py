"""The part of the benchmark that needs no server: the library in memory."""
