"""A replay as a self-contained HTML page: no scripts, no requests, light and dark.

Logs contain what clients sent. So only `element` builds elements, which escapes every text, and the content security
policy allows nothing but the page's own style.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from html import escape
from importlib import resources

from headgate.core.numbers import printable
from headgate.replay.chart import columns
from headgate.replay.replaying import ReplaySummary
from headgate.replay.results import DENY_LIST, ComparisonSummary, RefusedSummary, RulesSummary, RuleSummary
from headgate.replay.wording import counted, later, notes_on, percent, period_text, readable, unit_text

MOST_RULES = 200
"""Rules shown of each file, those that refuse most."""
_TALL, _TREND = 100, 60
"""Height of charts in their own units, and the columns of a trend in a table."""
_EMPTY = {"meta", "path", "rect", "line"}


class Html(str):
    """Markup, which is not escaped."""

    __slots__ = ()


def element(tag: str, *children: str | Html | Iterable[str | Html] | None, **attributes: str | float | None) -> Html:
    """Return an element; children other than `Html` are escaped. ``class_`` is the attribute "class"."""
    given = [
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    opening = f"<{tag}{''.join(given)}"
    return Html(f"{opening}/>" if tag in _EMPTY and not children else f"{opening}>{_joined(children)}</{tag}>")


def _joined(children: Iterable[str | Html | Iterable[str | Html] | None]) -> Html:
    found: list[str] = []
    for child in children:
        if isinstance(child, Html):
            found.append(child)
        elif isinstance(child, str):
            found.append(escape(printable(child)))
        elif child is not None:
            found.append(_joined(child))
    return Html("".join(found))


def report(summary: ReplaySummary, names: Sequence[str], logs: Sequence[str]) -> str:
    """Return the page; `names` are those of the rule files, `logs` those of the logs."""
    style = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = " and ".join(names)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"Replay of {title}"),
        element("style", Html(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', _Page(summary, names, logs).main()), lang='en')}\n"


class _Page:
    def __init__(self, summary: ReplaySummary, names: Sequence[str], logs: Sequence[str]) -> None:
        self._summary, self._names, self._logs = summary, names, logs
        self._starts = datetime.fromisoformat(summary.buckets_from)

    def main(self) -> Html:
        summary, names = self._summary, self._names
        shown = ", ".join(self._logs[:3]) + (f" and {len(self._logs) - 3} more" if len(self._logs) > 3 else "")
        about = f"{counted(summary.lines, 'request')} of {shown}"
        if summary.began is not None:
            about += f", {period_text(summary.began, summary.ended)} UTC"
        title = f"What {names[0]} would have refused"
        parts = [element("h1", title if len(names) == 1 else f"{names[1]} instead of {names[0]}")]
        parts.append(element("p", about, class_="about"))
        if summary.comparison is not None:
            parts += self._comparison(summary.comparison)
        for name, rules in zip(names, summary.rules, strict=True):
            if len(names) > 1:
                parts.append(element("h2", f"By {name}"))
            parts += self._rules(rules)
        return element("main", parts, self._notes())

    def _rules(self, rules: RulesSummary) -> list[Html]:
        requests, refused = rules.requests, rules.refused
        refusing = sum(rule.refused.count > 0 for rule in rules.rules)
        applied = [rule for rule in rules.rules if rule.decided]
        figures = [
            _figure(f"{requests:,}", "requests decided"),
            _figure(f"{refused:,}", f"refused, {percent(refused, requests)}", "is-refused" if refused else None),
            _figure(f"{rules.principals_refused:,}", "principals were refused"),
            _figure(f"{refusing:,}", f"rules that refused, of {len(rules.rules):,}"),
        ]
        charts = [
            _legend(("requests", f"requests in {unit_text(self._summary.bucket_seconds)}"), ("refused", "refused")),
            self._chart(
                [("requests", rules.requests_over_time), ("refused", rules.refused_over_time)], "tall", has_labels=True
            ),
        ]
        if refused:
            charts += [_legend(("refused", "refused, on a scale of their own"))]
            charts += [self._chart([("refused", rules.refused_over_time)], "low")]
        if rules.would_refuse:
            charts += [_legend(("shadow", f"{rules.would_refuse:,} more would be refused by shadow rules"))]
            charts += [self._chart([("shadow", rules.would_refuse_over_time)], "low")]
        parts = [element("div", figures, class_="figures"), element("section", charts, class_="card")]
        if applied:
            columns_ = "Rule", "Requests", "Refused", "Share", "Principals", "When refused"
            number = {"Requests", "Refused", "Principals"}
            cells = [element("span", name, class_="number" if name in number else None) for name in columns_]
            rows = [self._rule(rule, is_open=not place) for place, rule in enumerate(applied[:MOST_RULES])]
            parts += [
                element("section", element("div", cells, class_="row head"), rows, class_="card rules"),
            ]
        if len(applied) > MOST_RULES:
            parts.append(
                element("p", f"{len(applied) - MOST_RULES:,} rules that refuse less are left out.", class_="quiet")
            )
        if rules.deny_listed.count:
            count = f"The deny list refused {counted(rules.deny_listed.count, 'request')}"
            parts.append(element("section", element("h3", count), self._refused(rules.deny_listed), class_="card"))
        idle = [rule.id for rule in rules.rules if not rule.decided and rule.enabled]
        if idle:
            more = f" and {len(idle) - 20:,} more" if len(idle) > 20 else ""
            text = f"Applied to no request: {', '.join(idle[:20])}{more}"
            parts.append(element("p", text, class_="quiet"))
        return parts

    def _rule(self, rule: RuleSummary, *, is_open: bool) -> Html:
        refused, counts, kind = rule.refused, rule.refused_over_time, "refused"
        if rule.would_refuse.count and not refused.count:
            refused, counts, kind = rule.would_refuse, rule.would_refuse_over_time, "shadow"
        is_shadow = rule.shadow or kind == "shadow"
        badge = element("span", "shadow", class_="badge") if is_shadow else None
        about = f"{rule.limit} by {rule.counts_by}"
        estimate = "" if refused.principals_exact else "about "
        row = [
            element("span", rule.id, badge, element("small", about), class_="name"),
            _cell("requests", f"{rule.decided:,}"),
            _cell(
                "would refuse" if is_shadow else "refused", f"{refused.count:,}", f"is-{kind}" if refused.count else ""
            ),
            element(
                "span",
                _label("share"),
                percent(refused.count, rule.decided),
                _bar(refused.count, rule.decided, kind),
                class_="share",
            ),
            _cell("principals", f"{estimate}{refused.principals:,}"),
            element("span", _trend(counts, kind), class_="trend"),
        ]
        more = []
        if rule.decided:
            text = "would be refused" if is_shadow else "refused"
            more += [
                _legend(("requests", "requests"), (kind, text)),
                self._chart([("requests", rule.decided_over_time), (kind, counts)], "low"),
            ]
        if refused.count:
            of = f"{estimate}{refused.principals:,} of {counted(rule.principals, 'principal')}"
            more.append(self._refused(refused, of))
        else:
            more.append(element("p", f"It refused none of {counted(rule.principals, 'principal')}.", class_="quiet"))
        return element(
            "details",
            element("summary", element("div", row, class_="row")),
            element("div", more, class_="more"),
            class_="rule",
            open="" if is_open else None,
        )

    def _refused(self, refused: RefusedSummary, of: str = "", title: str = "Refused most often") -> Html:
        """Return the principals refused most often, and the first refusal."""
        head = element("tr", element("th", title), element("th", "Requests", class_="number"))
        least = "" if refused.top_exact else "at least "
        rows = [
            element(
                "tr",
                element("td", each.principal, class_="mono"),
                element("td", f"{least}{each.count:,}", class_="number"),
            )
            for each in refused.top
        ]
        parts = [element("div", element("table", head, rows))]
        facts: list[tuple[str, str]] = [("Who", of)] if of else []
        if refused.first is not None:
            first = refused.first
            facts += [("First" if of else "When", f"{readable(first.at)} UTC"), ("Caller", first.principal)]
            facts += [("Request", f"{first.method} {first.path}")]
            facts += [("Agent", first.agent)] if first.agent else []
        if facts:
            listed = [(element("dt", name), element("dd", value)) for name, value in facts]
            parts.append(element("div", element("h3", "In short" if of else "First of them"), element("dl", *listed)))
        return element("div", parts, class_="columns")

    def _comparison(self, changes: ComparisonSummary) -> list[Html]:
        figures = [
            _figure(
                f"{changes.newly_refused:,}",
                f"newly refused, of {counted(changes.principals_newly_refused, 'principal')}",
                "is-refused" if changes.newly_refused else None,
            ),
            _figure(
                f"{changes.newly_admitted:,}",
                f"newly admitted, of {counted(changes.principals_newly_admitted, 'principal')}",
                "is-admitted" if changes.newly_admitted else None,
            ),
        ]
        parts = [element("div", figures, class_="figures")]
        charts = []
        for kind, title, counts in (
            ("refused", "newly refused", changes.newly_refused_over_time),
            ("admitted", "newly admitted", changes.newly_admitted_over_time),
        ):
            if any(counts):
                charts += [_legend((kind, title)), self._chart([(kind, counts)], "low")]
        if charts:
            parts.append(element("section", charts, class_="card"))
        for title, who, by_rule in (
            ("Newly refused by", "Newly refused most often", changes.refused_by),
            ("No longer refused by", "Newly admitted most often", changes.admitted_by),
        ):
            for rule, refused in [*by_rule.items()][:MOST_RULES]:
                count = f"{counted(refused.count, 'request')} of {counted(refused.principals, 'principal')}"
                name = rule if rule == DENY_LIST else f"rule {rule}"
                heading = element("h3", f"{title} {name}: {count}")
                parts.append(element("section", heading, self._refused(refused, title=who), class_="card"))
        return parts

    def _notes(self) -> Html | None:
        notes = notes_on(self._summary)
        if not notes:
            return None
        parts = [element("ul", [element("li", note) for note in notes])]
        if self._summary.unread_first:
            head = element(
                "tr", *[element("th", name) for name in ("File", "Line", "Why it could not be read", "Text")]
            )
            rows = [
                element(
                    "tr",
                    element("td", file),
                    element("td", f"{line:,}", class_="number"),
                    element("td", why),
                    element("td", excerpt, class_="mono"),
                )
                for file, line, why, excerpt in self._summary.unread_first
            ]
            parts.append(element("div", element("table", head, rows), class_="scroll"))
        return element("section", element("h2", "Good to know"), element("div", parts, class_="card notes"))

    def _chart(self, series: Sequence[tuple[str, Sequence[int]]], size: str, *, has_labels: bool = False) -> Html:
        """Return a chart over time; the first series has the highest counts. Hovering shows the counts, on request."""
        counts = [count for _, count in series]
        buckets, highest = len(counts[0]), max(map(max, counts))
        drawn: list[Html] = [element("line", x1=0, x2=buckets, y1=y, y2=y, class_="grid") for y in (0, _TALL // 2)]
        drawn += [element("path", d=_area(count, highest), class_=kind) for kind, count in series]
        if has_labels:
            drawn += [self._hover_label(place, series) for place in range(buckets)]
        each = unit_text(self._summary.bucket_seconds)
        title = f"{' and '.join(kind for kind, _ in series)} over time, at most {highest:,} in {each}"
        view = f"0 0 {buckets} {_TALL}"
        svg = element("svg", drawn, viewBox=view, preserveAspectRatio="none", class_=size, role="img", aria_label=title)
        scale = element("div", *[element("span", text) for text in (f"{highest:,}", "0")], class_="scale")
        ends = self._starts, self._at(buckets)
        times = element("div", *[element("span", f"{end:%Y-%m-%d %H:%M}") for end in ends], class_="times")
        return element("figure", scale, svg, times)

    def _at(self, place: int) -> datetime:
        return later(self._starts, self._summary.bucket_seconds * place)

    def _hover_label(self, place: int, series: Sequence[tuple[str, Sequence[int]]]) -> Html:
        text = f"{self._at(place):%Y-%m-%d %H:%M:%S} UTC"
        for kind, counts in series:
            text += f"\n{counts[place]:,} {kind}"
        return element("rect", element("title", Html(escape(text))), x=place, y=0, width=1, height=_TALL, class_="over")


def _figure(value: str, about: str, kind: str | None = None) -> Html:
    return element("div", element("strong", value, class_=kind), element("span", about), class_="card")


def _legend(*keys: tuple[str, str]) -> Html:
    return element("p", [element("span", text, class_=f"key-{kind}") for kind, text in keys], class_="legend")


def _label(text: str) -> Html:
    return element("span", text, class_="label")


def _cell(label: str, value: str, kind: str = "") -> Html:
    return element("span", _label(label), value, class_=f"number {kind}".strip())


def _bar(part: int, whole: int, kind: str) -> Html:
    width = 100 * part / whole if whole else 0
    filled = element("rect", width=round(max(width, 1 if part else 0), 2), height=6, class_=kind)
    return element("svg", filled, viewBox="0 0 100 6", preserveAspectRatio="none", aria_hidden="true")


def _trend(counts: Sequence[int], kind: str) -> Html:
    found, _ = columns(counts, _TREND)
    area = element("path", d=_area(found, max(found, default=0)), class_=kind)
    view = f"0 0 {max(1, len(found))} {_TALL}"
    return element("svg", area, viewBox=view, preserveAspectRatio="none", aria_hidden="true")


def _area(counts: Sequence[int], highest: int) -> str:
    """Return the outline of counts as steps; every nonzero count is visible."""
    path, last = f"M0 {_TALL}", 0.0
    for place, count in enumerate(counts):
        height = max(_TALL * count / highest, 1.5) if count else 0
        if height != last:
            path += f"H{place}V{round(_TALL - height, 1):g}"
            last = height
    return f"{path}H{len(counts)}V{_TALL}Z"
