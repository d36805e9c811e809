"""All files of a service, changed in all ways: the new version counts, unless it is wrong; then the old one stays."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import UsageError
from headgate.live import Live
from headgate.policy.envoy import Descriptor
from headgate.server.configuration import Configuration, live_identity
from headgate.server.proxied_clients import log_reasons
from headgate.server.settings import Settings
from headgate.web.apikey import digest
from headgate.web.identity import Identifier
from tests.server.process.certificates import Authority
from tests.servers import until
from tests.web.tokens import jwk

DESCRIPTORS = "domain: edge\ndescriptors: [{{key: user, rate_limit: {{unit: hour, requests_per_unit: {}}}}}]\n"


@dataclass(frozen=True)
class Kind:
    """One kind of file, with the number 1 in it, then 2; and what shows which of them is in force."""

    setting: str
    written: Callable[[int], str]
    number: Callable[[Configuration], int]
    folder: bool = False


def rules_number(found: Configuration) -> int:
    return found.rules.value.ruleset.rules[0].quotas[0].limit


def descriptors_number(found: Configuration) -> int:
    assert found.descriptors
    return found.descriptors.value.match("edge", [Descriptor((("user", "a"),))]).matches[0].limits[0].quota.limit


def identity_number(found: Configuration) -> int:
    names = [found.identifier().identify(None, [(b"x-api-key", b"%d" % each)], 0).source for each in (1, 2)]
    return names.index("apikey") + 1


def callers_number(found: Configuration) -> int:
    assert found.callers
    names = [found.callers.value.caller([(b"x-api-key", b"%d" % each)])[0] for each in (1, 2)]
    return names.index("edge") + 1


KINDS = {
    "rules": Kind("rules", "version: 1\nrules: [{{id: a, limit: {}, window: 1h}}]\n".format, rules_number),
    "descriptors": Kind("envoy_config", DESCRIPTORS.format, descriptors_number, folder=True),
    "identity": Kind(
        "identity",
        lambda number: f"version: 1\napi_keys: {{keys: [{{sha256: {digest(str(number))}, name: edge}}]}}\n",
        identity_number,
    ),
    "caller_keys": Kind("caller_keys", lambda number: f"edge {digest(str(number))}\n", callers_number),
}


def looked(live: Live[Any]) -> bool:
    """What two looks bring: a change counts when the files have stayed the same in between."""
    return [live.refresh(), live.refresh()][1]


class Files:
    """A configuration of one kind of file, behind links as in a ConfigMap: file -> ..data/file, ..data -> ..1."""

    def __init__(self, folder: Path, name: str) -> None:
        self.kind, self.folder = KINDS[name], folder / "mounted"
        for number in (1, 2):
            version = self.folder / f"..{number}"
            version.mkdir(parents=True)
            (version / "file.yaml").write_text(self.kind.written(number))
        (self.folder / "..data").symlink_to("..1")
        self.link = self.folder / "file.yaml"
        self.link.symlink_to("..data/file.yaml")
        setting = {self.kind.setting: str(self.folder if self.kind.folder else self.link)}
        self.found = Configuration(Settings(**setting))  # type: ignore[arg-type]
        self.live = self.found.lives[name]
        assert self.number == 1

    @property
    def number(self) -> int:
        return self.kind.number(self.found)


@pytest.fixture(params=[*KINDS])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Files(tmp_path, request.param)


def test_links_that_are_swapped(files: Files) -> None:
    (files.folder / "..new").symlink_to("..2")
    (files.folder / "..new").replace(files.folder / "..data")
    assert looked(files.live)
    assert files.number == 2


def test_a_file_that_is_edited_in_place(files: Files) -> None:
    files.link.write_text(files.kind.written(2))
    assert looked(files.live)
    assert (files.number, files.live.statistics().loads) == (2, 2)


def test_a_file_that_is_replaced(files: Files) -> None:
    new = files.folder / "new"
    new.write_text(files.kind.written(2))
    new.replace(files.link)
    assert looked(files.live)
    assert files.number == 2


def test_a_file_that_is_gone_and_comes_back(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.link.unlink()
    assert not looked(files.live)
    assert not looked(files.live)
    assert (files.number, files.live.statistics().failures, len(caplog.records)) == (1, 1, 1)
    assert f"the {files.live.what} in force stay" in caplog.text
    files.link.write_text(files.kind.written(2))
    assert looked(files.live)
    assert (files.number, files.live.statistics().error) == (2, "")


def test_a_file_that_cannot_be_read(files: Files) -> None:
    """A folder in its place: nobody can read that, while root can read whatever its mode is."""
    files.link.unlink()
    files.link.mkdir()
    assert not looked(files.live)
    assert (files.number, files.live.statistics().failures) == (1, 1)
    files.link.rmdir()
    files.link.write_text(files.kind.written(2))
    assert looked(files.live)
    assert files.number == 2


@pytest.mark.parametrize("wrong", ["rules: [", "\x00", "\udcff", "x" * 1_100_000])
def test_a_file_that_is_wrong(files: Files, wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    files.link.write_text(wrong, errors="surrogateescape")
    assert not looked(files.live)
    assert not looked(files.live)
    assert (files.number, files.live.statistics().failures, len(caplog.records)) == (1, 1, 1)
    assert str(files.folder) in caplog.text
    files.link.write_text(files.kind.written(2))
    assert looked(files.live)
    assert files.number == 2


def test_all_are_followed_from_threads_that_end(tmp_path: Path) -> None:
    paths, settings = {}, {}
    for name, kind in KINDS.items():
        path = paths[name] = tmp_path / name / "file.yaml"
        path.parent.mkdir()
        path.write_text(kind.written(1))
        settings[kind.setting] = str(path.parent if kind.folder else path)
    paths["identity"].write_text(
        paths["identity"].read_text().replace("api_keys: {", "api_keys: {header: x-client-key, ")
    )
    found = Configuration(Settings(**settings))  # type: ignore[arg-type]
    assert [*found.lives] == ["rules", "descriptors", "identity", "caller_keys"]
    found.start()
    try:
        for path in paths.values():
            path.write_text(f"{path.read_text()}# changed\n")
        until(lambda: all(live.statistics().loads == 2 for live in found.lives.values()), "all are in force")
    finally:
        found.close()
    for path in paths.values():
        path.write_text(f"{path.read_text()}# changed again\n")
    assert {live.statistics().loads for live in found.lives.values()} == {2}
    found.reload()
    assert {live.statistics().loads for live in found.lives.values()} == {3}


@contextmanager
def certificates(folder: Path) -> Iterator[tuple[Authority, Path, Path, Live[ssl.SSLContext]]]:
    authority = Authority(folder, "authority")
    certificate, key = authority.signed("server")
    found = Configuration(Settings(tls_cert=str(certificate), tls_key=str(key)))
    assert found.tls
    yield authority, certificate, key, found.tls.live


def test_a_certificate_and_a_key_that_do_not_fit_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with certificates(tmp_path) as (authority, certificate, key, live):
        before, (other, its_key) = live.value, authority.signed("other")
        key.write_bytes(its_key.read_bytes())
        assert not looked(live)
        assert not looked(live)
        assert live.value is before
        assert (live.statistics().failures, len(caplog.records)) == (1, 1)
        assert f"{certificate}: the certificates in force stay" in caplog.text
        certificate.write_bytes(other.read_bytes())
        assert looked(live)
        assert live.value is not before
        its_key.unlink()
        key.unlink()
        assert not looked(live)
        assert live.statistics().failures == 2


def test_a_certificate_is_not_used_before_its_key_has_come(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who looks between the two files does not complain: they have not settled."""
    with certificates(tmp_path) as (authority, certificate, key, live):
        other, its_key = authority.signed("other")
        certificate.write_bytes(other.read_bytes())
        assert not live.refresh()
        key.write_bytes(its_key.read_bytes())
        assert [live.refresh(), live.refresh()] == [False, True]
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def identity(folder: Path, keys: str) -> Live[Identifier]:
    (folder / "identity.yaml").write_text(keys)
    live = live_identity(Settings(identity=str(folder / "identity.yaml")))
    assert live is not None
    return live


def test_a_file_of_keys_that_an_identity_file_names_is_followed_too(tmp_path: Path) -> None:
    jwks = tmp_path / "jwks.json"
    jwks.write_bytes(b'{"keys": []}')
    with pytest.raises(UsageError, match="none of the 0 keys"):
        identity(tmp_path, "version: 1\ntokens: [{algorithms: [ES256], jwks: jwks.json}]\n")
    jwks.write_text(json.dumps({"keys": [jwk("ES256", kid="one")]}))
    live = identity(tmp_path, "version: 1\ntokens: [{algorithms: [ES256], jwks: jwks.json}]\n")
    assert [live.refresh(), live.refresh()] == [False, False]
    jwks.unlink()
    assert not looked(live)
    assert "cannot be read" in live.statistics().error
    jwks.write_text(json.dumps({"keys": [jwk("ES256", kid="two")]}))
    assert looked(live)
    assert live.value.tokens
    assert [key.key_id for key in live.value.tokens.issuers[0].keys] == ["two"]


def test_without_a_file_clients_are_known_by_address() -> None:
    found = Configuration(Settings())
    assert found.identifier().credentials == set()
    assert [*found.lives] == ["rules"]


def test_why_a_credential_proves_nothing_is_told_to_those_who_look_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identifier, lines = identity(tmp_path, KINDS["identity"].written(2)).value, [(b"x-api-key", b"1")]
    assert identifier.addresses.source == "x-forwarded-for"
    with caplog.at_level(logging.INFO, "headgate.server"):
        log_reasons(identifier.identify("192.0.2.1", lines, 0))
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "headgate.server"):
        log_reasons(identifier.identify("192.0.2.1", lines, 0))
        log_reasons(identifier.identify("192.0.2.1", [], 0))
    assert [record.getMessage() for record in caplog.records] == ["a client's apikey is not accepted: unknown key"]


@pytest.mark.parametrize(
    ("written", "said"),
    [(b"x" * 1_100_000, "more than"), (b"\xff\xfe", "UTF-8"), (b"# nobody", "every request would be refused")],
)
def test_caller_keys_that_cannot_be_read_are_a_reason_not_to_start(tmp_path: Path, written: bytes, said: str) -> None:
    file = tmp_path / "callers"
    file.write_bytes(written)
    with pytest.raises(UsageError, match=said):
        Configuration(Settings(caller_keys=str(file)))
