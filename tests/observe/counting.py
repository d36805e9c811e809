"""Counts decisions as a worker, prints "counted", and waits to be killed.

Usage: counting.py DIRECTORY WORKER COUNT
"""

from __future__ import annotations

import sys

from headgate.observe.recorder import Recorder
from headgate.observe.workers import CounterFiles


def main() -> None:
    directory, worker, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    recorder = Recorder(CounterFiles(directory), worker)
    recorder.publish()
    for number in range(count):
        recorder.record_call("check", "denied" if number % 10 == 0 else "allowed", 25_000)
    sys.stdout.write("counted\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
