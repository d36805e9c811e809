"""Draws the pictures of docs/algorithms.md: what each algorithm makes of the same arrivals.

Run it with ``make plots``. It calls the pure functions of the core with times of its own choosing, so nothing sleeps
and every run writes the same files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from headgate import Algorithm, Quota

IMAGES = Path(__file__).parent / "images"
SECOND = 1_000_000
SECONDS = 52
LIMIT = 10
WINDOW = 10 * SECOND
START = 170_000_000 * WINDOW  # where a window begins, as for every algorithm that aligns its windows


@dataclass(frozen=True)
class Run:
    """What one quota made of the arrivals. Times are in microseconds from the start."""

    quota: Quota
    admitted: tuple[int, ...]
    """When the requests that passed had arrived."""
    released: tuple[int, ...]
    """When it was their turn: at once, except in a queue."""

    @property
    def digest(self) -> str:
        """Changes with the data; each picture carries that of the data it shows."""
        return sha256(repr((str(self.quota), arrivals(), self.admitted, self.released)).encode()).hexdigest()


def arrivals() -> list[int]:
    """Return two bursts of 12 around the boundary of a window, a pause, then 3 a second: three times the limit."""
    bursts = (second * SECOND + n * SECOND // 12 for second in (9, 10) for n in range(12))
    steady = (24 * SECOND + n * SECOND // 3 for n in range(72))
    return [*bursts, *steady]


def run(quota: Quota) -> Run:
    """Pass all arrivals through `quota`."""
    state, passed = None, []
    for at in arrivals():
        state, decision = quota.step(state, 1, START + at)
        if decision:
            passed.append((at, at + decision.delay_us))
    return Run(quota, tuple(at for at, _ in passed), tuple(turn for _, turn in passed))


def runs() -> dict[str, Run]:
    """Return the run behind each picture, by the name of the picture."""
    return {
        str(algorithm): run(
            Quota(LIMIT, WINDOW, algorithm=algorithm, queue=algorithm is Algorithm.LEAKY_BUCKET),
        )
        for algorithm in Algorithm
    }


def per_second(times: Iterable[int]) -> Counter[int]:
    """Count `times` by the second in which they are."""
    return Counter(time // SECOND for time in times if time < SECONDS * SECOND)


def most_within(times: Sequence[int], length: int) -> int:
    """Return the most of `times` in any interval of `length` microseconds."""
    return max(sum(time - length < other <= time for other in times) for time in times)


def trailing(times: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return the steps, in seconds and counts, of how many of `times` are in the window that ends now."""
    changes = Counter(times)
    changes.subtract(time + WINDOW for time in times)
    xs, ys = [0.0], [0]
    for time in sorted(time for time, change in changes.items() if change):
        xs.append(time / SECOND)
        ys.append(ys[-1] + changes[time])
    return [*xs, float(max(SECONDS, xs[-1]))], [*ys, ys[-1]]


NOTES = {
    Algorithm.TOKEN_BUCKET: "10 at once from a full bucket, then as tokens fall",
    Algorithm.LEAKY_BUCKET: "10 admitted at once, let go one a second",
    Algorithm.FIXED_WINDOW: "20 within 2 s: the boundary burst",
    Algorithm.SLIDING_WINDOW_LOG: "10 at once, then none until these are 10 s old",
    Algorithm.SLIDING_WINDOW_COUNTER: "10 at once, then more as the window before loses weight",
    Algorithm.GCRA: "what the token bucket admits, from one timestamp",
}
INK, FAINT, ASKED, PASSED, METER, OVER = "#1f2933", "#9aa5b1", "#d5dae1", "#1f6f8b", "#9cc7d6", "#c8553d"
STYLE: dict[Any, Any] = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "headgate",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw(picture: Run) -> Figure:
    """Draw arrivals and what passed, second by second, and below it how much passed in the trailing window."""
    figure = Figure(figsize=(7.2, 3.7), facecolor="white", layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_seconds(upper, picture)
    _draw_window(lower, picture)
    title = f"{picture.quota.algorithm.replace('_', ' ').capitalize()}, {LIMIT} per 10 s"
    figure.suptitle(title.replace("Gcra", "GCRA"), x=0.012, ha="left", fontsize=11, fontweight="bold")
    figure.legend(loc="outside upper right", ncols=3, frameon=False, handlelength=1, handleheight=1, columnspacing=1.4)
    return figure


def _draw_seconds(axes: Any, picture: Run) -> None:
    _draw_bars(axes, arrivals(), ASKED, "arrived")
    if picture.quota.queue:
        _draw_bars(axes, picture.admitted, METER, "admitted")
        _draw_bars(axes, picture.released, PASSED, "let go")
    else:
        _draw_bars(axes, picture.admitted, PASSED, "admitted")
    axes.text(11.5, 10, NOTES[picture.quota.algorithm], va="center")
    axes.set(ylabel="per second", ylim=(0, 12.5))
    axes.yaxis.set_major_locator(MultipleLocator(5))
    _draw_windows(axes)


def _draw_bars(axes: Any, times: Iterable[int], color: str, label: str) -> None:
    counts = per_second(times)
    axes.bar([second + 0.5 for second in counts], list(counts.values()), width=0.84, color=color, label=label)


def _draw_window(axes: Any, picture: Run) -> None:
    xs, ys = trailing(picture.released)
    axes.fill_between(xs, ys, step="post", color=PASSED, alpha=0.3, linewidth=0)
    over = [max(count, LIMIT) for count in ys]
    axes.fill_between(xs, over, LIMIT, step="post", color=OVER, alpha=0.75, linewidth=0)
    if picture.quota.queue:
        axes.step(*trailing(picture.admitted), where="post", color=METER, linewidth=1.2)
    axes.step(xs, ys, where="post", color=PASSED, linewidth=1.2)
    axes.axhline(LIMIT, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate("limit", (0.4, LIMIT), xytext=(0, 2.5), textcoords="offset points", fontsize=8)
    most = max(ys)
    peak = xs[ys.index(most)]
    axes.annotate(f"{most}", (peak, most), xytext=(-2, 2), textcoords="offset points", ha="right", fontweight="bold")
    axes.set(ylabel="in trailing 10 s", xlabel="seconds", xlim=(0, SECONDS), ylim=(0, 2.4 * LIMIT))
    axes.xaxis.set_major_locator(MultipleLocator(10))
    axes.yaxis.set_major_locator(MultipleLocator(10))
    _draw_windows(axes)


def _draw_windows(axes: Any) -> None:
    for boundary in range(10, SECONDS, 10):
        axes.axvline(boundary, color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, picture in runs().items():
            about = {"Creator": "docs/plots.py", "Date": None, "Description": f"data {picture.digest}"}
            draw(picture).savefig(IMAGES / f"{name}.svg", metadata=about)


if __name__ == "__main__":
    main()
