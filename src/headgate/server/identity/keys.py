"""The keys of an issuer of tokens, from the file that an identity file names: a JWK set, or one key as PEM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headgate.web.errors import InvalidSettings
from headgate.web.jwk import FAMILIES, VerificationKey, key_set

_MAX_BYTES = 1_048_576


def from_jwks(path: Path, algorithms: Sequence[str]) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWK set that are for one of the algorithms. Raises InvalidSettings."""
    content = _content(path)
    try:
        return key_set(msgspec.json.decode(content), algorithms)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidSettings(f'{path} is not JSON; a JWK set is such as {{"keys": [...]}}') from None
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None


def from_pem(path: Path, algorithms: Sequence[str]) -> tuple[VerificationKey, ...]:
    """Return the key of a PEM file. Raises InvalidSettings."""
    if len(algorithms) != 1:
        raise InvalidSettings(f"a key as PEM is for one algorithm, not for {len(algorithms)}")
    (algorithm,) = algorithms
    if FAMILIES[algorithm] == "oct":
        raise InvalidSettings(f"{algorithm} has a shared secret rather than a PEM file: give it as a JWK set")
    content = _content(path)
    try:
        return (VerificationKey.load(algorithm, content),)
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidSettings(f"{path} cannot be read: {reason}") from None
    if len(raw) > _MAX_BYTES:
        raise InvalidSettings(f"{path} has more than {_MAX_BYTES:_} bytes")
    return raw
