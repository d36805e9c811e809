"""Paths: one form for each, or a refusal, so that no spelling escapes the rules."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.quota import Quota
from headgate.policy.compiled import Policy
from headgate.policy.model import Rule, Ruleset
from headgate.policy.paths import LONGEST, MOST_SEGMENTS, normalised
from headgate.policy.request import InvalidRequest, Request

PATH = "/api/v1/orders/pending"
SLASHES = [place for place, character in enumerate(PATH) if character == "/"]
LETTERS = [place for place, character in enumerate(PATH) if character != "/"]


def put(text: str, place: int, cut: int = 0) -> str:
    """Return the path with `text` at a place, instead of the next `cut` characters."""
    return PATH[:place] + text + PATH[place + cut :]


SAME = {
    PATH,
    PATH + "/",
    PATH + "//",
    PATH + "?",
    PATH + "?a=/../b#c",
    PATH + "?a?b=%zz%00\\",
    PATH[1:],
    "".join(f"%{ord(letter):02X}" if letter != "/" else letter for letter in PATH),
    "http://example.com" + PATH,
    "HTTPS://user:pass@example.com:8443" + PATH,
    "http://[2001:db8::1]" + PATH,
    "ws://example.com" + PATH + "/?q",
    *[put(text, place, 1) for place in SLASHES for text in ("/./", "/././", "/%2e/", "/%2E/")],
    *[put(text, place, 1) for place in SLASHES[1:] for text in ("//", "///", "/.//./", "/%2E//")],
    *[
        put(text, place)
        for place in (*SLASHES[1:], len(PATH))
        for text in (";", ";a", ";a=1;b=2", ";jsessionid=%41", "/;x")
    ],
    *[put(form.format(ord(PATH[place])), place, 1) for place in LETTERS for form in ("%{:02x}", "%{:02X}")],
}
ODD = "%00 %0a %0D %7F %3b %3Bx # #/x % %4 %zz %u0041"
REFUSED = {
    *[put(text, place, 1) for place in SLASHES for text in ("%2f", "%2F", "%5c", "%5C", "\\", "/..\\", "/%2f")],
    *[put(text, place, 1) for place in SLASHES for text in ("/../", "/%2e%2E/", "/.%2e/", "/%2e./", "/..;/", "/.;/")],
    *[put(text, place, 1) for place in SLASHES for text in ("/..;a=b/", "/%2e%2e;/", "/%252e/", "/%c0%ae/", "/%c0%af")],
    *[put(f"%25{ord(PATH[place]):02x}", place, 1) for place in LETTERS],
    *[put(text, place) for place in (SLASHES[1], len(PATH)) for text in ("\0", "\t", "\x7f", *ODD.split())],
    *[
        put(text, len(PATH))
        for text in ("%ff", "%E9", "%25%34%31", "%2%35", ";%2f..", ";%00", ";\\", "\ud800", "%ED%A0%80")
    ],
    *[before + PATH for before in ("/", "//", "/./", "/.//.", "/%2E/", "/;", "/;x", "//x", "//x:80", "//u@x")],
    *[before + PATH for before in ("http://", "http:///", "http://example.com/", "http://example.com/./", "http:")],
    *[before + PATH for before in ("http:x", "example.com:80", "javascript:")],
    " " + PATH,
    PATH + " ",
    PATH + "/x/..",
    "/x/.." + PATH,
    "/.." + PATH,
    "http://example.com\\" + PATH,
    "http://example.com#" + PATH,
    "\\" + PATH,
}
POLICY = Policy(Ruleset((Rule("orders", Quota.parse("10/minute"), dimension="endpoint", endpoint=PATH),)))


def test_the_corpus_is_large() -> None:
    assert len(SAME | REFUSED) == len(SAME) + len(REFUSED) > 200


def test_a_spelling_of_a_path_hits_its_rule_and_counts_in_the_same_place() -> None:
    for path in sorted(SAME):
        selection = POLICY.select(Request(endpoint=path), 0)
        assert selection == POLICY.select(Request(endpoint=PATH), 0), path
        assert selection.enforced.plan[0].principal == PATH, path


def test_ambiguous_paths_are_refused() -> None:
    def is_refused(path: str) -> bool:
        try:
            POLICY.select(Request(endpoint=path), 0)
        except InvalidRequest:
            return True
        return False

    assert [path for path in REFUSED if not is_refused(path)] == []


def test_one_documented_behaviour_each() -> None:
    for path, canonical in (
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("*", "/"),
        ("?a=b", "/"),
        ("http://example.com", "/"),
        ("http://example.com?a", "/"),
        ("/.", "/"),
        ("/./", "/"),
        ("orders", "/orders"),
        ("/Orders", "/Orders"),
        ("/a/...", "/a/..."),
        ("/a/.b/b.", "/a/.b/b."),
        ("/caf\u00e9", "/caf%C3%A9"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/cafe\u0301", "/cafe%CC%81"),
        ("/a b", "/a%20b"),
        ("/a+b", "/a+b"),
        ("/a%2Bb", "/a+b"),
        ("/a%20b", "/a%20b"),
        ("/100%25", "/100%25"),
        ("/%25zz", "/%25zz"),
        ("/%7Eme", "/~me"),
        ("/me%40home", "/me@home"),
        ("/v1:run", "/v1:run"),
        ("/%2A", "/*"),
        ("/a%3Fb%23c", "/a%3Fb%23c"),
        ('/<>"[]^`{|}', "/%3C%3E%22%5B%5D%5E%60%7B%7C%7D"),
        ("/http://example.com/a", "/http:/example.com/a"),
        ("///", "/"),
        ("//.", "/"),
        ("//?a", "/"),
        ("/a//b///c", "/a/b/c"),
        ("/a" * MOST_SEGMENTS, "/a" * MOST_SEGMENTS),
        ("/a" * 2 + "/" * (MOST_SEGMENTS - 2), "/a/a"),
        ("/" + "a" * 1000 + "/a" * (MOST_SEGMENTS - 1), "/" + "a" * 1000 + "/a" * (MOST_SEGMENTS - 1)),
        ("/" + "a" * (LONGEST - 1), "/" + "a" * (LONGEST - 1)),
        ("/a?" + "q" * 2 * LONGEST, "/a"),
    ):
        assert normalised(path) == canonical


def test_a_refusal_says_why() -> None:
    for path, message in (
        ("/a/../b", r"the path '/a/../b' is not accepted: it has a \.\. segment: resolve it first"),
        ("/a%2fb", "it has %2F, which servers interpret differently"),
        ("/a%5Cb", "it has a backslash"),
        ("/a%zz", "it has a % that encodes nothing: a percent sign is written %25"),
        ("/%2541", "it is encoded twice"),
        ("/%E9", "it is not UTF-8"),
        ("/a#b", "it has a #, which is written %23"),
        ("//x/api/login", "'//x/api/login' is not accepted: it begins with //, after which some servers expect a host"),
        ("http:/x/login", "it begins with neither a slash nor http:// and a host"),
        ("/a" * (MOST_SEGMENTS + 1), "it has 257 segments: at most 256 are accepted"),
        ("/" + "a" * 1000 + "/a" * MOST_SEGMENTS, "it has 257 segments"),
        ("a/" * MOST_SEGMENTS + "a", "it has 257 segments"),
        ("/" + "a" * LONGEST, "the path has 8193 characters: at most 8192 are accepted"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            normalised(path)
    with pytest.raises(InvalidRequest, match="the endpoint must be a path, such as '/api/orders', not b'/a'"):
        normalised(b"/a")  # type: ignore[arg-type]


paths = st.one_of(
    st.text("ab/.%2eEfF5;?#\\\0é:*", max_size=14).map(lambda text: "/" + text),
    st.lists(
        st.sampled_from(
            ["/", "//", "a", "%61", ".", "%2e", "..", ";x", "%25", "25", "41", "é", "%C3%A9", " ", "%20", "~"]
        ),
        max_size=8,
    ).map("".join),
    st.text(max_size=20),
)


@given(paths)
def test_an_accepted_path_keeps_its_meaning(path: str) -> None:
    """Decoded once, its segments are those of the path as sent, but for empty ones, dots and parameters."""
    with suppress(InvalidRequest):
        canonical = normalised(path)
        assert normalised(canonical) == canonical
        assert normalised(urlsplit(path).path) == canonical, "as Python's servers find it, which take it for a URL"
    path = "/" + path.lstrip("/")
    with suppress(InvalidRequest):
        canonical = normalised(path)
        sent = [unquote(segment.partition(";")[0]) for segment in path.partition("?")[0].split("/")]
        assert [unquote(segment) for segment in canonical[1:].split("/")] == [
            segment for segment in sent if segment not in {"", "."}
        ] or (canonical == "/" and not {*sent} - {"", "."})
