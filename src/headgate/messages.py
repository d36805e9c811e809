"""Text for messages: untrusted values, numbers of things, and packages that are not installed."""

from __future__ import annotations

_PACKAGES = {
    "backports": "backports.zstd",
    "google": "protobuf",
    "grpc": "grpcio",
    "jwt": "pyjwt[crypto]",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",  # requires the others
    "yaml": "pyyaml",
}
"""Packages whose names differ from those of their modules."""


def printable(text: str, longest: int = 0) -> str:
    """Return untrusted text for one line: control characters are escaped, and text beyond `longest` is cut."""
    if 0 < longest < len(text):
        end = f"... ({len(text)} characters)"
        text = text[: longest - len(end)] + end
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else each.encode("unicode_escape").decode() for each in text])


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as "1 rule" or "2,000 rules"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def not_installed(module: str | None, extra: str) -> str:
    """Return the message for a failed import: the package to install, and the extra of ours that includes it.

    `module` is the one that could not be imported; None if unknown.
    """
    everything = f"in a checkout of Headgate pip install '.[{extra}]'"
    if module is None:
        return f"a required package is not installed: {everything}"
    name = module.partition(".")[0]
    package = _PACKAGES.get(name, name)
    plain = package.partition("[")[0]
    quoted = package if plain == package else f"'{package}'"
    return f"{plain} is not installed: pip install {quoted}, or {everything} with all its dependencies"
