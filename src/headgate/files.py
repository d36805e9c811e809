"""Read files up to a bound, and replace them atomically."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headgate.core.errors import UsageError


class UnreadableFile(UsageError):
    """A file that cannot be read, or is too large; the message has no file name."""


class FileTooLarge(UnreadableFile):
    """A file that is larger than its reader allows."""


def content_of(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises UnreadableFile."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  any path-like
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise FileTooLarge(f"has more than {most:_} bytes")
    return content


def replace_file(path: Path, content: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Write a file atomically: readers find the old one or the new one. Raises OSError.

    With `durable`, this holds for a power cut as well.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:  # noqa: PTH123  with a mode
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with suppress(OSError):  # the incomplete file is useless
            new.unlink()
        raise


def renew_file(path: Path, content: bytes, *, durable: bool = True) -> bool:
    """Replace a file unless it has this content already; return whether it was replaced. Raises OSError."""
    if path.exists() and path.read_bytes() == content:
        return False
    replace_file(path, content, durable=durable)
    return True
