"""Draws the diagrams of the documentation as SVG: ``make plots``. Every run writes the same files.

A diagram is a list of shapes in a grid of pixels. Colours follow the reader's theme, so that one file serves both.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
STYLE = """
svg { font: 13px system-ui, sans-serif; --ink: #1f2430; --soft: #5b6472; --line: #8a93a3; --fill: #f4f6f9;
  --ours: #dbe8fd; --edge: #2f6fde; --bad: #fbe0dc; --good: #ddf1e2 }
@media (prefers-color-scheme: dark) { svg { --ink: #e6e9ef; --soft: #a3acba; --line: #6f7988; --fill: #20252e;
  --ours: #1c3358; --edge: #78a6f5; --bad: #55251f; --good: #1d4029 } }
text { fill: var(--ink); text-anchor: middle } .soft { fill: var(--soft); font-size: 12px }
rect, polygon { fill: var(--fill); stroke: var(--line) } .ours { fill: var(--ours); stroke: var(--edge) }
.bad { fill: var(--bad) } .good { fill: var(--good) } .axis, .arrow { fill: none; stroke: var(--line) }
.dashed { stroke-dasharray: 5 4 } .tip { fill: var(--line); stroke: none }
"""
Place = tuple[int, int, int, int]
"""Left, top, width and height."""
LINE = 17
"""Pixels from one line of text to the next."""


def text(x: int, y: int, content: str, style: str = "") -> str:
    """Return lines of text, centred at (x, y)."""
    lines = content.split("\n")
    top = y + 4 - (len(lines) - 1) * LINE // 2
    return "".join(
        f'<text x="{x}" y="{top + n * LINE}" class="{"soft" if n else style}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )


def box(place: Place, content: str, style: str = "") -> str:
    """Return a rectangle with its text; the first line is its title."""
    x, y, width, height = place
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{style}"/>'
    return shape + text(x + width // 2, y + height // 2, content)


def choice(place: Place, content: str) -> str:
    """Return a diamond, for a question."""
    x, y, width, height = place
    right, bottom, across, down = x + width, y + height, x + width // 2, y + height // 2
    points = f"{across},{y} {right},{down} {across},{bottom} {x},{down}"
    return f'<polygon points="{points}"/>' + text(across, down, content)


def arrow(*points: tuple[int, int], label: str = "", style: str = "", at: tuple[int, int] | None = None) -> str:
    """Return a line through `points` with a tip at its end, and a label at `at` (default: the middle of the line)."""
    path = "M" + " L".join(f"{x} {y}" for x, y in points)
    (x, y), (to_x, to_y) = points[-2:]
    length = max(abs(to_x - x), abs(to_y - y)) or 1
    ahead, aside = 8 * (to_x - x) / length, 8 * (to_y - y) / length
    left = f"{to_x - ahead - aside / 2:g},{to_y - aside + ahead / 2:g}"
    right = f"{to_x - ahead + aside / 2:g},{to_y - aside - ahead / 2:g}"
    middle = at or ((points[0][0] + points[-1][0]) // 2, (points[0][1] + points[-1][1]) // 2 - 9)
    return f'<path d="{path}" class="arrow {style}"/><polygon points="{to_x},{to_y} {left} {right}" class="tip"/>' + (
        text(*middle, label, "soft") if label else ""
    )


def svg(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    """Return the document; `title` is for screen readers."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    return f"{head}><title>{escape(title)}</title><style>{STYLE}</style>\n" + "\n".join(shapes) + "\n</svg>\n"


def topology() -> str:
    """The processes and their connections."""
    shapes = [
        box((20, 110, 100, 60), "Clients"),
        box((190, 20, 210, 60), "Envoy or another gateway\nyour own, or headgate gateway"),
        box((190, 110, 210, 60), "Your application\nany language, or our SDK"),
        box((190, 200, 210, 60), "Your Python application\nwith the library", "ours"),
        box((510, 20, 190, 150), "Headgate nodes\nHTTP 8080, gRPC 8081\nadmin plane and\nconsole 8082", "ours"),
        box((800, 20, 180, 60), "Redis or Valkey\nthe state of every limit"),
        box((800, 110, 180, 60), "Rules\nYAML, SQLite, PostgreSQL"),
        box((510, 230, 190, 60), "Operators\nconsole, CLI, REST"),
        arrow((120, 130), (155, 130), (155, 50), (190, 50)),
        arrow((120, 140), (190, 140)),
        arrow((120, 150), (155, 150), (155, 230), (190, 230)),
        arrow((400, 50), (510, 50), label="RLS, ext_authz"),
        arrow((400, 140), (510, 140), label="HTTP, gRPC"),
        arrow((700, 50), (800, 50), label="one call"),
        arrow((400, 230), (455, 230), (455, 200), (750, 200), (750, 66), (800, 66), label="one call", at=(640, 191)),
        arrow((800, 140), (700, 140), style="dashed"),
        text(725, 128, "rules", "soft"),
        arrow((605, 230), (605, 170)),
    ]
    title = "Clients connect to Envoy or applications, which call Headgate nodes; the nodes decide in Redis"
    return svg(1000, 310, title, shapes)


def request() -> str:
    """The path of a request, from its identity to its response."""
    steps = (
        ("Identify", "user, API key,\naddress"),
        ("Match", "rules for the path,\nmethod, attributes"),
        ("Resolve", "tier and override,\nless what is replaced"),
        ("Plan", "one limit per rule,\none key each"),
        ("Decide", "all limits at once,\nor none takes"),
        ("Respond", "headers and body,\n200 or 429"),
    )
    shapes = []
    for n, (name, what) in enumerate(steps):
        x = 20 + n * 164
        shapes.append(box((x, 30, 136, 80), f"{name}\n{what}", "ours" if name == "Decide" else ""))
        if n:
            shapes.append(arrow((x - 28, 70), (x, 70)))
    shapes += [
        box((676, 170, 136, 60), "Store\nRedis or memory"),
        box((430, 170, 190, 60), "Circuit open or late\nlocal share, allow or deny", "bad"),
        arrow((744, 110), (744, 170), label="one call", at=(778, 144)),
        arrow((690, 110), (690, 140), (525, 140), (525, 170), style="dashed"),
        arrow((430, 200), (400, 200), (400, 262), (908, 262), (908, 110), label="marked degraded", at=(650, 254)),
    ]
    return svg(1000, 280, "A request is identified, matched, resolved, planned, decided and answered", shapes)


def outage() -> str:
    """How a node decides before, during and after an outage of the store."""
    phases = (
        (20, 200, "Strict", "the store decides", "good"),
        (220, 180, "Deadline", "each call waits for it, then\nthe rule's mode decides", "bad"),
        (400, 330, "Circuit open", "the mode decides at once: local share,\nallow or deny; marked degraded", "bad"),
        (730, 250, "Strict", "the store decides again;\nlocal usage is not added to it", "good"),
    )
    shapes = [arrow((20, 170), (985, 170)), text(970, 190, "time", "soft")]
    events = ((220, "the store stops"), (400, "5 failures in a row"), (640, "it is back"), (730, "a probe succeeds"))
    for x, label in events:
        shapes.append(f'<path d="M{x} 50 L{x} 176" class="axis dashed"/>')
        shapes.append(text(x, 36, label, "soft"))
    shapes += [box((x, 60, width, 76), f"{name}\n{what}", style) for x, width, name, what, style in phases]
    shapes += [arrow((x, 160), (x, 138)) for x in (470, 540, 610, 680)]
    shapes.append(text(560, 190, "probes: one call each, with a pause between them", "soft"))
    return svg(1000, 210, "An outage: strict, then deadlines, then an open circuit, then strict again", shapes)


def refused() -> str:
    """What to check, and what to do, when callers report the status 429."""
    shapes = [
        box((20, 20, 230, 60), "A caller gets 429\nthe body names the rule", "bad"),
        choice((20, 120, 230, 100), "Is it degraded?\nX-RateLimit-Degraded"),
        box((340, 140, 250, 60), "The store is down\nthe rules' mode decides"),
        choice((20, 260, 230, 100), "Did the rule change?\nheadgate revisions"),
        box((340, 280, 250, 60), "Undo the change\nheadgate undo --wait"),
        choice((20, 400, 230, 100), "Which caller?\nheadgate refusals"),
        box((340, 370, 250, 60), "A caller who should pass\nheadgate users override --for 1h"),
        box((340, 460, 250, 60), "Many callers, one address\nname the trusted proxies"),
        box((680, 370, 250, 60), "To admit it at once\nheadgate reset --user"),
        box((680, 460, 250, 60), "All callers are refused\nheadgate enforcement off"),
        arrow((135, 80), (135, 120)),
        arrow((135, 220), (135, 260), label="no", at=(152, 238)),
        arrow((135, 360), (135, 400), label="no", at=(152, 378)),
        arrow((250, 170), (340, 170), label="yes"),
        arrow((250, 310), (340, 310), label="yes"),
        arrow((250, 450), (295, 450), (295, 400), (340, 400)),
        arrow((250, 450), (295, 450), (295, 490), (340, 490)),
        arrow((590, 400), (680, 400)),
        arrow((590, 490), (680, 490), label="or"),
    ]
    return svg(950, 540, "What to do about refusals: store, rule, caller, address", shapes)


DIAGRAMS = {"topology": topology, "request": request, "outage": outage, "refused": refused}


def main() -> None:
    """Write all diagrams."""
    for name, draw in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
