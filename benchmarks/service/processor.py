"""The processor time of a process and all that it started, from Linux's /proc."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def processes(root: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    found = [root]
    for pid in found:  # grows while it is gone through
        for children in PROC.glob(f"{pid}/task/*/children"):
            found += map(int, _read(children).split())
    return found


def used_ns(root: int) -> int:
    """Return the nanoseconds, user and system, that all threads of a process and its descendants were running."""
    return sum(
        int((_read(thread) or "0").split()[0])
        for pid in processes(root)
        for thread in PROC.glob(f"{pid}/task/*/schedstat")
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended meanwhile
        return ""
