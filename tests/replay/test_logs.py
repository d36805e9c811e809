"""Access logs: every format as real servers write it, any other content of files, and several logs merged."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import UsageError
from headgate.replay.logs import FORMATS, Entry, LogReader, MergedLogs
from tests.replay.samples import SECOND, START, line

NOON = int(datetime(2026, 11, 18, 12, 0, 1, tzinfo=UTC).timestamp()) * 1_000_000
COMBINED = '203.0.113.9 - alice [18/Nov/2026:12:00:01 +0000] "GET /orders/7?page=2 HTTP/1.1" 200 512 "-" "curl/8.5"'
ORDERS = Entry(NOON, "203.0.113.9", "alice", "GET", "/orders/7", "", 200, "curl/8.5")
ENVOY = (
    '[2026-11-18T12:00:01.250Z] "POST /orders HTTP/2" 204 - 154 0 226 100 "198.51.100.1,203.0.113.9" "curl/8.5"'
    ' "cc21d9b0-cf5c-432b" "api.example.com:443" "tcp://10.0.2.1:80"'
)
ISTIO = (
    '[2026-11-18T12:00:01.250Z] "POST /orders HTTP/1.1" 418 - via_upstream - "-" 0 135 4 4 "-" "curl/8.5"'
    ' "84961386-6d84" "[2001:db8::1]:8000" "10.44.1.27:80" inbound|80|| 127.0.0.1:41854 10.44.1.27:80'
    " 203.0.113.9:37652 outbound_.8000_._.httpbin.foo default"
)
ALB = (
    "https 2026-11-18T12:00:01.250000Z app/my-lb/50dc6c495c0c9188 203.0.113.9:2817 10.0.0.1:80 0.086 0.048 0.037"
    ' 200 200 0 57 "GET https://www.example.com:443/orders/7?page=2 HTTP/1.1" "curl/8.5" ECDHE-RSA TLSv1.2 arn:aws'
    ' "Root=1-58337281" "www.example.com" "arn:aws:acm" 1 2026-11-18T12:00:01.000000Z "waf,forward" "-" "-" "-" "-"'
)
GATEWAY = {  # of headgate gateway
    "time": "2026-11-18T12:00:01.250Z", "method": "GET", "host": "api.example.com:8443", "path": "/orders/7",
    "status": 200, "client": "203.0.113.9", "apikey": "ak_1",
}  # fmt: skip
CADDY = {
    "level": "info", "ts": NOON / 1e6 + 0.25, "logger": "http.log.access", "user_id": "alice", "status": 200,
    "request": {
        "remote_ip": "10.0.0.1", "client_ip": "203.0.113.9", "method": "GET", "host": "example.com",
        "uri": "/orders/7?page=2", "headers": {"User-Agent": ["curl/8.5"]},
    },
}  # fmt: skip
TRAEFIK = {
    "ClientHost": "203.0.113.9", "ClientUsername": "-", "DownstreamStatus": 200, "RequestHost": "example.com",
    "RequestMethod": "GET", "RequestPath": "/orders/7?page=2", "StartUTC": "2026-11-18T12:00:01.250123456Z",
    "request_User-Agent": "curl/8.5", "time": "2026-11-18T12:00:01Z",
}  # fmt: skip
NGINX = {
    "msec": f"{NOON // 1_000_000}.250", "remote_addr": "2001:db8::1", "remote_user": "alice", "status": "200",
    "request": "GET /orders/7?page=2 HTTP/1.1", "http_user_agent": 'say "hi"',
}  # fmt: skip
QUARTER = 250_000
ONE_LINE: list[tuple[str, str, Entry]] = [
    ("combined", COMBINED, ORDERS),
    ("combined", f'{COMBINED} "10.0.0.1" rt=0.004', ORDERS),  # fields added by packages of nginx, or by users
    ("combined", COMBINED.partition(' "-"')[0], ORDERS._replace(agent="")),  # common
    ("combined", COMBINED.replace("12:00:01 +0000", "07:30:01 -0430"), ORDERS),
    ("combined", COMBINED.replace("alice", "-").replace("GET", "PURGE"), ORDERS._replace(user="", method="PURGE")),
    ("combined", COMBINED.replace("203.0.113.9", "2001:db8::1"), ORDERS._replace(address="2001:db8::1")),
    ("combined", COMBINED.replace("203.0.113.9", "unix:"), ORDERS._replace(address="")),
    ("combined", COMBINED.replace("alice", r"al [1/2] \x22ice"), ORDERS._replace(user='al [1/2] "ice')),
    ("combined", COMBINED.replace("curl/8.5", r"a \"b\" \\ \xc3\xa9"), ORDERS._replace(agent='a "b" \\ é')),
    ("combined", COMBINED.replace("/orders/7?page=2", "/a b"), ORDERS._replace(path="/a b")),
    ("combined", COMBINED.replace("/orders/7?", "http://x.org:80/orders/7?"), ORDERS._replace(host="x.org")),
    ("combined", COMBINED.replace("200 512", "- -"), ORDERS._replace(status=0)),
    ("vhost_combined", f"api.example.com:443 {COMBINED}", ORDERS._replace(host="api.example.com")),
    ("vhost_combined", f"[2001:db8::5]:443 {COMBINED}", ORDERS._replace(host="2001:db8::5")),
    ("envoy", ENVOY, Entry(NOON + QUARTER, "203.0.113.9", "", "POST", "/orders", "api.example.com", 204, "curl/8.5")),
    ("envoy", ISTIO, Entry(NOON + QUARTER, "203.0.113.9", "", "POST", "/orders", "2001:db8::1", 418, "curl/8.5")),
    ("alb", ALB, Entry(NOON + QUARTER, "203.0.113.9", "", "GET", "/orders/7", "www.example.com", 200, "curl/8.5")),
    ("json", json.dumps(GATEWAY), Entry(
        NOON + QUARTER, "203.0.113.9", "", "GET", "/orders/7", "api.example.com", 200, "", {"apikey": "ak_1"})),
    ("json", json.dumps(CADDY), Entry(
        NOON + QUARTER, "203.0.113.9", "alice", "GET", "/orders/7", "example.com", 200, "curl/8.5")),
    ("json", json.dumps(TRAEFIK), Entry(
        NOON + 250_123, "203.0.113.9", "", "GET", "/orders/7", "example.com", 200, "curl/8.5")),
    ("json", json.dumps(NGINX), Entry(
        NOON + QUARTER, "2001:db8::1", "alice", "GET", "/orders/7", "", 200, 'say "hi"')),
]  # fmt: skip
HEADED: list[tuple[str, str, Entry]] = [
    ("csv", 'time,ip,user,method,path,"status"\n2026-11-18T13:00:01+01:00,203.0.113.9,"a ""b"", c",GET,/orders/7?a,200',
     Entry(NOON, "203.0.113.9", 'a "b", c', "GET", "/orders/7", "", 200)),
    ("csv", f"\ufeffTimestamp;URL;API_Key\n{NOON // 1000};https://example.com/orders;ak_1",
     Entry(NOON, "", "", "", "/orders", "example.com", 0, "", {"apikey": "ak_1"})),
    ("csv", "date\ttime\tpath\n2026-11-18\t12:00:01.250\t/orders", Entry(NOON + QUARTER, "", "", "", "/orders", "", 0)),
    ("w3c", "#Version: 1.0\n#Fields: date time c-ip cs-method cs-uri-stem\n2026-11-18 12:00:01 203.0.113.9 GET /orders",
     Entry(NOON, "203.0.113.9", "", "GET", "/orders", "", 0)),
]  # fmt: skip


def entries(path: Path, data: bytes, **options: Any) -> tuple[list[Entry], LogReader]:
    path.write_bytes(data)
    reader = LogReader(str(path), **options)
    return list(reader), reader


@pytest.mark.parametrize(("name", "written", "expected"), ONE_LINE + HEADED)
def test_each_format_is_recognised_and_read(tmp_path: Path, name: str, written: str, expected: Entry) -> None:
    for options in ({}, {"format": name}):
        found, reader = entries(tmp_path / "access.log", f"{written}\n".encode(), **options)
        assert found == [expected]
        assert reader.unread_count == 0
        assert reader.read_bytes == reader.total_bytes


TIMES = [
    "2026-11-18T12:00:01Z", "2026-11-18 12:00:01", "2026-11-18T12:00:01.000000000Z", "2026-11-18T05:00:01-07:00",
    "2026-11-18T17:30:01+0530", "2026/11/18 12:00:01", "18/Nov/2026:12:00:01 +0000", "18/Nov/2026:13:00:01 +0100",
    NOON // 1_000_000, NOON // 1000, NOON, NOON * 1000, NOON / 1e6, f"{NOON / 1e6}", str(NOON * 1000),
]  # fmt: skip
NO_TIMES = [
    "", "-", None, True, [1], "yesterday", "31/Feb/2026:12:00:01 +0000", "18/Foo/2026:12:00:01 +0000",
    "2026-13-01T00:00:00Z",
    "0001-01-01T00:00:00+99:99", -1, 0, 1e300, float("1e19") * 30, "9" * 5000, "nan", "inf",
]  # fmt: skip


def test_times_are_read_in_all_notations(tmp_path: Path) -> None:
    lines = [json.dumps({"time": time, "path": "/"}) for time in (*TIMES, *NO_TIMES)]
    found, reader = entries(tmp_path / "log", "\n".join(lines).encode())
    assert [entry.at for entry in found] == [NOON] * len(TIMES)
    assert reader.unread_count == len(NO_TIMES)


def test_columns_name_other_fields(tmp_path: Path) -> None:
    row = json.dumps({"time": NOON, "path": "/", "x": {"id": "u1"}, "a.b": 7, "key": ["k", "l"], "no": None})
    columns = {"user": "x.id", "region": "a.b", "apikey": "key", "plan": "no"}
    found, _ = entries(tmp_path / "log", row.encode(), columns=columns)
    assert (found[0].user, found[0].fields) == ("u1", {"region": "7", "apikey": "k"})
    table = b"when,what,who,key\n2026-11-18T12:00:01Z,/,u1,k\n"
    columns = {"at": "when", "path": "what", "user": "who", "region": "key"}
    found, _ = entries(tmp_path / "log", table, columns=columns)
    assert found == [Entry(NOON, "", "u1", "", "/", "", 0, "", {"region": "k"})]


def test_files_of_different_formats_and_compressions_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = f"{COMBINED}\n".encode()
    contents = {
        "access.log.3.gz": gzip.compress(plain) + gzip.compress(plain),
        "access.log.2.zst": zstd.compress(plain) + zstd.compress(plain),
        "named-wrongly.gz": json.dumps(GATEWAY).encode(),
        "empty": b"",
        "crlf": plain.replace(b"\n", b"\r\n") + b"\r\n",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    logs = MergedLogs([str(tmp_path / name) for name in contents])
    gateway = next(entry for _, line, entry in ONE_LINE if line == json.dumps(GATEWAY))
    assert list(logs) == [*[ORDERS] * 5, gateway]
    assert logs.read_bytes == logs.total_bytes == sum(map(len, contents.values()))
    assert logs.unread == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(plain)))))
    logs = MergedLogs(["-", str(tmp_path / "crlf")])
    assert list(logs) == [ORDERS, ORDERS]
    assert logs.total_bytes is None


HOSTILE = {
    b"\xff\xfe GET": "not UTF-8",
    b"\0" * 5000: "NUL",
    COMBINED.replace("alice", "a\0b").encode(): "NUL",
    COMBINED.replace("GET /orders/7?page=2 HTTP/1.1", r"\x16\x03\x01").encode(): "no HTTP request",
    COMBINED.replace("GET /orders/7?page=2 HTTP/1.1", "-").encode(): "no HTTP request",
    COMBINED.replace("/orders/7?page=2", "*").encode(): "no path",
    COMBINED.replace("12:00:01", "12:61:01").encode(): "minute",
    COMBINED[:60].encode(): "format",
    b'"' * 50_000: "format",
    b"\\" * 50_000 + b'"': "format",
    b'- - - [- "' * 5000: "format",
    b"x" * 300_000: "longer",
    b"\xf0\x9f\x92\xa9\x1b[31m": "format",
}


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_lines_that_cannot_be_read_are_counted_and_shown(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    good = COMBINED.encode()
    lines = [good, b"", b"  "]
    for each in HOSTILE:
        lines += [each, good]
    found, reader = entries(tmp_path / "log", compress(b"\n".join(lines)))
    assert found == [ORDERS] * (len(HOSTILE) + 1)
    assert reader.unread_count == len(HOSTILE)
    whys = list(HOSTILE.values())
    assert len(reader.unread_first) == 10
    for index, unread in enumerate(reader.unread_first):
        assert whys[index] in unread.why
        assert unread.line == 4 + 2 * index
        assert unread.excerpt.isprintable()
        assert len(unread.excerpt) < 1500


@pytest.mark.parametrize(
    "line",
    [
        "[" * 50_000, '{"time":' + '{"a":' * 50_000, '{"time": 1e999, "path": "/"}', '{"time": "x", "path": "/"}',
        "null",
        '{"time": 1800000000, "path": ""}', '{"time": 1800000000, "path": {}}', '{"time": 1800000000}', '{"path": "/"}',
        '{"time": 1800000000, "request": "?"}', '{"time": {}, "path": "/"}', '{"time": 1800000000, "path": "no/slash"}',
    ],
)  # fmt: skip
def test_json_that_is_no_request_is_counted(tmp_path: Path, line: str) -> None:
    good = json.dumps(GATEWAY)
    found, reader = entries(tmp_path / "log", f"{good}\n{line}\n{good}".encode())
    assert (len(found), reader.unread_count) == (2, 1)


def test_lines_before_damaged_compressed_data_are_read(tmp_path: Path) -> None:
    lines = "".join(COMBINED.replace("/7", f"/{number * 7919 % 10**6}") + "\n" for number in range(50_000)).encode()
    for compress in (gzip.compress, zstd.compress):
        packed = bytearray(compress(lines))
        found, reader = entries(tmp_path / "log", bytes(packed[: len(packed) // 2]))
        assert 1000 < len(found) < 50_000
        assert (reader.unread_count, "early" in reader.unread_first[0].why) == (1, True)
        assert reader.unread_first[0].line == len(found) + 1
        packed[len(packed) // 2] ^= 0xFF
        packed[len(packed) // 2 + 1] ^= 0xFF
        found, reader = entries(tmp_path / "log", bytes(packed))
        assert 1000 < len(found) < 50_001
        assert reader.unread_count > 0


def test_memory_is_bounded_for_endless_lines_and_compression_bombs(tmp_path: Path) -> None:
    (tmp_path / "line").write_bytes(b"x" * (40 << 20) + b"\n" + COMBINED.encode())
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(40 << 20), 1))
    (tmp_path / "bomb.zst").write_bytes(zstd.compress(bytes(40 << 20)))
    tracemalloc.start()
    try:
        logs = MergedLogs([str(tmp_path / name) for name in ("line", "bomb.gz", "bomb.zst")], form="combined")
        assert list(logs) == [ORDERS]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert [each.line for each in logs.unread_first] == [1, 1, 1]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b"hello\nworld\n", {}, "unknown format: 'hello'\nthe formats are:\n  vhost_combined"),
        (COMBINED.encode(), {"format": "alb"}, "not in format alb"),
        (COMBINED.encode(), {"format": "elf"}, "unknown format 'elf'; the formats are:"),
        (COMBINED.encode(), {"columns": {"user": "x"}}, "no named fields"),
        (b"time,path\n", {"columns": {"user": "x"}}, "no column 'x' for user; the columns are: time, path"),
        (b"when,path\n", {"format": "csv"}, "no column contains the time of a request; the columns are: when"),
        (b"BZh91AY", {}, "bzcat"),
    ],
)
def test_unusable_files_are_refused_with_a_correction(
    tmp_path: Path, data: bytes, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        entries(tmp_path / "log", data, **options)
    assert message in str(refused.value)


def test_without_its_extra_zstd_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.replay.logs.zstd", None)
    with pytest.raises(UsageError, match=r"compressed with zstd: backports\.zstd is not installed: pip install"):
        entries(tmp_path / "log", zstd.compress(COMBINED.encode()))


def test_paths_that_are_not_files_are_refused_at_once(tmp_path: Path) -> None:
    for paths, message in (([tmp_path], "is a folder"), ([tmp_path / "none"], "No such file"), ([], "no access log")):
        with pytest.raises(UsageError, match=message):
            MergedLogs([str(path) for path in paths])
    with pytest.raises(UsageError, match="null"):
        LogReader("a\0b")


def seconds_of(logs: MergedLogs) -> list[int]:
    return [(entry.at - START) // SECOND for entry in logs]


def written(folder: Path, name: str, *seconds: int) -> str:
    path = folder / name
    text = "".join([line(second) for second in seconds])
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def test_rotated_files_are_read_from_the_oldest_in_any_order_of_names(tmp_path: Path) -> None:
    """As a shell expands ``access.log*``: the newest first."""
    paths = [written(tmp_path, "access.log", 7, 8, 9), written(tmp_path, "access.log.1", 4, 5, 6)]
    paths.append(written(tmp_path, "access.log.2.gz", 1, 2, 3))
    logs = MergedLogs(paths)
    assert seconds_of(logs) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert logs.read_bytes == logs.total_bytes == sum(Path(path).stat().st_size for path in paths)


def test_logs_of_several_servers_are_merged(tmp_path: Path) -> None:
    paths = [written(tmp_path, "a.log", 1, 4, 9, 12), written(tmp_path, "b.log", 2, 4, 5, 10), ""]
    paths[2] = written(tmp_path, "later.log", 11)
    assert seconds_of(MergedLogs(paths)) == [1, 2, 4, 4, 5, 9, 10, 11, 12]


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    paths = [written(tmp_path, f"access.log.{number}", 2 * number, 2 * number + 1) for number in range(50)]
    most = 0
    for _ in MergedLogs(paths[::-1]):
        descriptors = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        most = max(most, sum(str(each.readlink()).startswith(str(tmp_path)) for each in descriptors))
    assert 1 <= most <= 2


def test_a_file_counts_once_and_may_be_empty(tmp_path: Path) -> None:
    path, empty = written(tmp_path, "a.log", 3), written(tmp_path, "empty.log")
    assert seconds_of(MergedLogs([path, empty, path])) == [3]


def test_unreadable_lines_are_counted_over_all_files(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(f"{line(1)}what\n{line(2)}")
    logs = MergedLogs([str(tmp_path / "a.log"), str(tmp_path / "b.log")])
    assert len([*logs]) == 4
    assert (logs.unread, [Path(each.file).name for each in logs.unread_first]) == (2, ["a.log", "b.log"])


def test_an_unknown_format_in_any_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text("what\n")
    with pytest.raises(UsageError, match=r"b\.log: unknown format"):
        next(iter(MergedLogs([written(tmp_path, "a.log", 1), str(tmp_path / "b.log")])))


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def nginx_escaped(text: str) -> str:
    """Return text as nginx writes it into its log."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}" for byte in text.encode())


@given(
    at=st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001  the zone is drawn apart
    minutes=st.integers(-14 * 60, 14 * 60),
    user=words,
    method=st.sampled_from(["GET", "POST", "PROPFIND"]),
    path=st.text(st.characters(min_codepoint=33, exclude_characters="?", exclude_categories=["Cs"]), max_size=30),
    status=st.integers(100, 599),
    agent=words,
)
def test_lines_written_by_nginx_are_parsed_exactly(
    *, at: datetime, minutes: int, user: str, method: str, path: str, status: int, agent: str
) -> None:
    """In combined and in JSON, with any text of clients."""
    when = at.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=minutes)))
    expected = Entry(
        int(when.timestamp()) * 1_000_000,
        "203.0.113.9",
        "" if user == "-" else user,
        method,
        f"/{path}",
        "",
        status,
        "" if agent == "-" else agent,
    )
    written = (
        f"203.0.113.9 - {nginx_escaped(user)} [{when:%d/%b/%Y:%H:%M:%S %z}]"
        f' "{method} /{nginx_escaped(path)} HTTP/1.1" {status} 12 "-" "{nginx_escaped(agent)}"'
    )
    assert FORMATS["combined"].begin(written, {})(written) == expected
    names = ("time", "remote_addr", "remote_user", "method", "uri", "host", "status", "http_user_agent")
    line = json.dumps(dict(zip(names, (when.isoformat(), *expected[1:8]), strict=True)))
    assert FORMATS["json"].begin(line, {})(line) == expected
