"""Counts in a slot until it is killed: run as a program, by tests of several processes.

Usage: counting.py DIRECTORY SLOT COUNT. Counts COUNT decisions, says so on standard output, and waits to be killed.
"""

from __future__ import annotations

import sys

from headgate.observe.recorder import Recorder
from headgate.observe.workers import Slots


def main() -> None:
    directory, slot, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    recorder = Recorder(Slots(directory), slot)
    recorder.publish()
    for number in range(count):
        recorder.called("check", "denied" if number % 10 == 0 else "allowed", 25_000)
    sys.stdout.write("counted\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
