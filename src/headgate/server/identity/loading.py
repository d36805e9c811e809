"""An identity file as what finds out who asks. All problems of a file are told at once, each with its place.

See `headgate.server.identity.forms` for the fields. Whatever a file says, `headgate.web` has the last word on it; what
it refuses is told with the line that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from headgate.policy.loading import text_of
from headgate.policy.problems import Findings, InvalidRules, Kind, Problem, in_order, render
from headgate.policy.problems import Path as Place
from headgate.policy.yaml_nodes import Document
from headgate.server.api.forward_auth import LOOPBACK
from headgate.server.identity import keys
from headgate.server.identity.forms import FILE
from headgate.web.address import AddressReader
from headgate.web.apikey import ApiKeys, Holder
from headgate.web.errors import InvalidSettings
from headgate.web.identity import Identifier
from headgate.web.jwk import VerificationKey
from headgate.web.jwt import Issuer, TokenVerifier
from headgate.web.lines import header_name

T = TypeVar("T")
FORWARDED_FOR = "x-forwarded-for"
_USER = {"user": "sub"}


def load_identity(
    path: str | PathLike[str], trusted: Sequence[str] = (), reading: Callable[[Path], object] = lambda _: None
) -> Identifier:
    """Return what finds out who asks, as a file says.

    Args:
        path: of the YAML file. Files that it names are looked for in its folder.
        trusted: networks of proxies that were named elsewhere; the file may not name others then.
        reading: called with each file that it names, before that is read.

    Raises:
        InvalidRules: with all the problems.
    """
    name = fspath(path)
    document = Document(text_of(path), name, "an identity file")
    findings = Findings()
    read = FILE.read(document.data, (), findings)
    identifier = None
    if read is not None and not findings.count:
        identifier = _Building(Path(name).parent, findings, reading).identifier(read, trusted)
    if identifier is None or findings.count or document.problems:
        problems = [_without_secrets(problem) for problem in findings.located(document)]
        raise InvalidRules(in_order([*document.problems, *problems]))
    return identifier


def _without_secrets(problem: Problem) -> Problem:
    """Return a problem without its line, where somebody may have written an API key in place of its digest."""
    return replace(problem, source="") if problem.path.startswith("api_keys") else problem


class _Building:
    """Makes the parts of a file that is well formed, and notes what makes no sense."""

    def __init__(self, folder: Path, findings: Findings, reading: Callable[[Path], object]) -> None:
        self._folder, self._findings, self._reading = folder, findings, reading

    def identifier(self, read: Mapping[str, Any], trusted: Sequence[str]) -> Identifier | None:
        addresses = self._addresses(read.get("addresses", {}), trusted)
        api_keys = self._api_keys(read["api_keys"]) if "api_keys" in read else None
        tokens = self._tokens(read["tokens"]) if "tokens" in read else None
        return None if addresses is None else Identifier(addresses, api_keys, tokens)

    def _addresses(self, given: Mapping[str, Any], elsewhere: Sequence[str]) -> AddressReader | None:
        path, header = ("addresses",), given.get("header", FORWARDED_FOR)
        trusted, hops = given.get("trusted"), given.get("hops", 0)
        for said in ("trusted", "hops"):
            if said in given and elsewhere:
                message = "the option --trusted-proxies says who is trusted, too"
                self._note((*path, said), message, "Say it in one of the two places.", at_key=True)
        if trusted is None:
            trusted = () if hops else (elsewhere or LOOPBACK)
        for index, network in enumerate(trusted):
            self._made((*path, "trusted", index), AddressReader, FORWARDED_FOR, [network])
        self._made((*path, "header"), header_name, header)
        if self._findings.count:
            return None
        return self._made(path, AddressReader, header, trusted, hops, given.get("ipv6_prefix", 64))

    def _api_keys(self, given: Mapping[str, Any]) -> ApiKeys | None:
        known: dict[str, Holder] = {}
        places: dict[str, Place] = {}
        for index, entry in enumerate(given["keys"]):
            path, digest = ("api_keys", "keys", index), entry["sha256"]
            if digest in known:
                self._note((*path, "sha256"), f"is that of {render(places[digest])}, too", "Remove one of the two.")
            who = [entry.get(part, "") for part in ("name", "user", "tenant", "tier")]
            holder = self._made(path, Holder, *who)
            known[digest], places[digest] = holder or Holder(), path
        header = given.get("header", "x-api-key")
        self._made(("api_keys", "header"), header_name, header)
        if self._findings.count:
            return None
        return self._made(("api_keys",), ApiKeys, known, header, given.get("scheme", ""))

    def _tokens(self, given: Sequence[Mapping[str, Any]]) -> TokenVerifier | None:
        issuers = [self._issuer(("tokens", index), issuer) for index, issuer in enumerate(given)]
        made = [issuer for issuer in issuers if issuer is not None]
        return self._made(("tokens",), TokenVerifier, made) if len(made) == len(given) else None

    def _issuer(self, path: Place, given: Mapping[str, Any]) -> Issuer | None:
        found = self._keys(path, given)
        if found is None:
            return None
        return self._made(
            path,
            Issuer,
            found,
            given.get("issuer", ""),
            given.get("audience", ()),
            _USER | given.get("claims", {}),
            given.get("realm", ""),
            given.get("leeway_s", 60),
        )

    def _keys(self, path: Place, given: Mapping[str, Any]) -> tuple[VerificationKey, ...] | None:
        sources = {"jwks": keys.from_jwks, "pem": keys.from_pem}
        named = [source for source in sources if source in given]
        if len(named) != 1:
            self._note(path, "its keys are in one file", "Give either jwks or pem.")
            return None
        (source,) = named
        if not given["algorithms"]:
            self._note((*path, "algorithms"), "names no algorithm", "Say by which its tokens are signed: [RS256].")
            return None
        file = self._folder / given[source]
        self._reading(file)
        return self._made((*path, source), sources[source], file, given["algorithms"])

    def _made(self, path: Place, make: Callable[..., T], *parts: Any) -> T | None:
        try:
            return make(*parts)
        except InvalidSettings as error:
            self._note(path, str(error))
            return None

    def _note(self, path: Place, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self._findings.add(path, message, hint=hint, kind=Kind.MEANING, at_key=at_key)
