"""Files of rules as the command line names them: paths, folders, ``-`` for the standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from headgate.core.errors import InvalidRule
from headgate.live import yaml_files
from headgate.policy import envoy
from headgate.policy.compiled import Policy
from headgate.policy.envoy import DescriptorPolicy
from headgate.policy.loading import InvalidRules, Loaded, Problem, read, text_of
from headgate.policy.problems import Kind
from headgate.policy.yaml_nodes import MAX_BYTES, decoded

STDIN = "-"
_ENVOY = re.compile(r"""^(?:\{\s*)?["']?domain["']?\s*:""", re.MULTILINE)
"""By this a file of envoyproxy/ratelimit is known."""


def is_for_envoy(text: str) -> bool:
    """Whether it is a file of envoyproxy/ratelimit."""
    return _ENVOY.search(text) is not None


def for_envoy(file: str) -> DescriptorPolicy | None:
    """Return the configuration of envoyproxy/ratelimit that is in a file or folder; None if rules are in it.

    Raises InvalidRules.
    """
    names = [*expanded([file])]
    if file == STDIN:
        return None
    texts = {name: text(name) for name in names}
    return envoy.load(texts) if any(map(is_for_envoy, texts.values())) else None


def checked(file: str) -> Loaded:
    """Return the rules of a file that can be used. Raises InvalidRules."""
    names = [*expanded([file])]
    if len(names) > 1:
        message = f"this folder has {len(names)} files of rules: name one of them"
        raise InvalidRules([Problem(message, file=file, kind=Kind.FILE)])
    return checked_text(text(names[0]), shown(names[0]))


def checked_text(text: str, name: str) -> Loaded:
    """Return rules that can be used. Raises InvalidRules."""
    loaded = read(text, name=name)
    try:
        Policy(loaded.ruleset)
    except InvalidRule as error:  # what only the compiled policy knows
        raise InvalidRules([Problem(str(error), file=name, kind=Kind.MEANING)]) from None
    return loaded


def expanded(files: Iterable[str]) -> Iterator[str]:
    """Return the files that are meant: of a folder its YAML files, in the order of their names. Raises InvalidRules."""
    for file in files:
        folder = Path(file)
        if file == STDIN or not folder.is_dir():
            yield file
            continue
        found = [str(path) for path in yaml_files(folder)]
        if not found:
            message = "no file in this folder ends in .yaml or .yml"
            raise InvalidRules([Problem(message, file=file, kind=Kind.FILE)])
        yield from found


def text(file: str) -> str:
    """Return what is in a file, or came by the standard input. Raises InvalidRules."""
    return decoded(sys.stdin.buffer.read(MAX_BYTES + 1), shown(file)) if file == STDIN else text_of(file)


def shown(file: str) -> str:
    """Return what to call a file in messages."""
    return "stdin" if file == STDIN else file
