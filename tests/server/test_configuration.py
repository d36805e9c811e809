"""The files of a service are changed in all ways: a valid version takes effect, an invalid one does not."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import UsageError
from headgate.live import Live
from headgate.policy.envoy import Descriptor
from headgate.policy.key_file import CONSUMERS, SharedKey, write_keys
from headgate.policy.snapshot import snapshot_folder
from headgate.server.configuration import EXAMPLE, Configuration, live_identity
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
    """A kind of file, with the number 1 and then 2 in it, and a function that returns the number in force."""

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


def link(files: Files) -> None:
    (files.folder / "..new").symlink_to("..2")
    (files.folder / "..new").replace(files.folder / "..data")


def edit(files: Files) -> None:
    files.link.write_text(files.kind.written(2))


def replace(files: Files) -> None:
    new = files.folder / "new"
    new.write_text(files.kind.written(2))
    new.replace(files.link)


@pytest.mark.parametrize("change", [link, edit, replace])
def test_links_that_are_swapped_and_files_that_are_edited_in_place_or_replaced(
    files: Files, change: Callable[[Files], None]
) -> None:
    change(files)
    assert looked(files.live)
    assert (files.number, files.live.statistics().loads) == (2, 2)


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_file_that_is_gone_and_comes_back(files: Files, *, is_folder: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A folder in its place cannot be read by any user; root can read a file of any mode."""
    files.link.unlink()
    if is_folder:
        files.link.mkdir()
    assert [looked(files.live), looked(files.live)] == [False, False]
    assert (files.number, files.live.statistics().failures, len(caplog.records)) == (1, 1, 1)
    assert f"the previous {files.live.what} stay in force" in caplog.text
    if is_folder:
        files.link.rmdir()
    edit(files)
    assert looked(files.live)
    assert (files.number, files.live.statistics().error) == (2, "")


@pytest.mark.parametrize("wrong", ["rules: [", "\x00", "\udcff", "x" * 1_100_000])
def test_a_file_that_is_wrong(files: Files, wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    files.link.write_text(wrong, errors="surrogateescape")
    assert [looked(files.live), looked(files.live)] == [False, False]
    assert (files.number, files.live.statistics().failures, len(caplog.records)) == (1, 1, 1)
    assert str(files.folder) in caplog.text
    edit(files)
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


def test_certificates_and_keys_count_only_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.signed("server")
    found = Configuration(Settings(tls_cert=str(certificate), tls_key=str(key), client_ca=str(authority.path)))
    assert found.tls
    assert found.tls.live.value.verify_mode is ssl.CERT_REQUIRED
    live = found.tls.live
    before, (other, its_key) = live.value, authority.signed("other")
    certificate.write_bytes(other.read_bytes())
    assert not live.refresh()
    key.write_bytes(its_key.read_bytes())
    assert [live.refresh(), live.refresh()] == [False, True]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == [], "they had not settled"
    key.write_bytes(authority.signed("third")[1].read_bytes())
    used = live.value
    assert [looked(live), looked(live), live.value is used, used is before] == [False, False, True, False]
    message = f"{certificate}: the previous certificates stay in force"
    assert (live.statistics().failures, caplog.text.count(message)) == (1, 1)
    key.write_bytes(its_key.read_bytes())
    assert looked(live)
    key.unlink()
    assert not looked(live)
    assert live.statistics().failures == 2


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


def test_an_identity_file_sets_where_consumers_send_their_keys_and_needs_a_database(tmp_path: Path) -> None:
    file = tmp_path / "identity.yaml"
    file.write_text("{version: 1, api_keys: {header: authorization, scheme: Bearer, keys: database}}")
    settings = Settings(identity=str(file), database="sqlite:///headgate.db", data_dir=str(tmp_path))
    folder = snapshot_folder(settings.database, settings.data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    live = live_identity(settings)
    assert live
    write_keys(folder, [SharedKey("1", digest("hgc_1"), consumer="acme")], CONSUMERS)
    assert live.refresh()
    for header, value, user in ((b"authorization", b"Bearer hgc_1", "acme"), (b"x-api-key", b"hgc_1", None)):
        assert live.value.identify(None, [(header, value)], 0).principal.get("user") == user
    with pytest.raises(UsageError, match="no database with consumers is configured"):
        live_identity(Settings(identity=str(file), rules=str(EXAMPLE)))


def test_reasons_of_invalid_credentials_are_logged_at_debug_level(
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
