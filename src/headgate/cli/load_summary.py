"""What a load run found, for people and for programs."""

from __future__ import annotations

from typing import Any

from headgate.cli.terminal import Terminal
from headgate.load_generator.running import Progress
from headgate.load_generator.statistics import Latency, Summary

_BAR = 40
"""Characters of the longest bar."""


def tell_progress(progress: Progress, terminal: Terminal) -> None:
    """Write a line on how it goes."""
    more = "".join(
        terminal.styled(f", {count:,} {what}", "red", err=True)
        for count, what in ((progress.shed, "shed"), (progress.failed, "errors"))
        if count
    )
    terminal.complain(f"{progress.seconds:4.0f} s  {progress.decided:>11,} decided  {progress.recently:>9,.0f}/s{more}")


def tell_summary(summary: Summary, terminal: Terminal) -> None:
    """Write all that was found."""
    rate = terminal.styled(f"{summary.rate:,.0f} decisions/s", "bold")
    stopped = ", stopped by Ctrl-C" if summary.interrupted else ""
    terminal.say(f"{summary.sent:,} requests in {summary.seconds:.2f} s: {rate}{stopped}")
    rows = [("allowed", summary.allowed, "green"), ("denied", summary.denied, "yellow")]
    odd = [
        ("degraded", summary.degraded, "yellow"),
        ("shed", summary.shed, "yellow"),
        ("errors", summary.failed, "red"),
        ("never sent", summary.missed, "red"),
    ]
    for name, count, style in [*rows, *odd]:
        line = f"  {name:<10} {count:>12,}"
        terminal.say(terminal.styled(line, style) if count else line)
    for kind, count in summary.errors.items():
        terminal.say(f"    {count:>10,}  {kind}")
    if summary.unmatched:
        few = "no rule" if summary.unmatched == summary.allowed else f"no rule in {summary.unmatched:,} cases"
        warning = f"{few} was for these requests: this is not what a limit costs. See --path and --method"
        terminal.say(terminal.styled(f"  warning: {warning}", "yellow"))
    if summary.missed:
        terminal.say("  never sent: due, but all connections were busy; more of them may help")
    terminal.say(
        f"connections: {summary.connects:,} made, {summary.connections_lost:,} lost while waiting for an answer, "
        f"{summary.connects_failed:,} attempts failed"
    )
    if summary.gone:
        terminal.say(terminal.styled("the service went away, and did not come back in time", "red"))
    if summary.latency is not None:
        _tell_latency(summary.latency, terminal)


def _tell_latency(latency: Latency, terminal: Terminal) -> None:
    named = {"min": latency.min, **latency.percentiles, "max": latency.max}
    terminal.say("latency of decisions: " + ", ".join(f"{name} {_time(value)}" for name, value in named.items()))
    most = max(count for _, count in latency.histogram)
    total = sum(count for _, count in latency.histogram)
    for bound, count in latency.histogram:
        bar = terminal.styled("#" * -(-count * _BAR // most), "cyan")
        space = " " * (_BAR - -(-count * _BAR // most))
        terminal.say(f"  <= {_time(bound):>8}  {bar}{space} {count:>12,} {100 * count / total:5.1f} %")


def _time(microseconds: int) -> str:
    if microseconds < 1000:
        return f"{microseconds} us"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds / 1_000_000:.3g} s"


def to_data(summary: Summary) -> dict[str, Any]:
    """Return all that was found; latencies are in microseconds."""
    latency = summary.latency
    return {
        "seconds": round(summary.seconds, 6),
        "requests_per_second": round(summary.rate, 3),
        "sent": summary.sent,
        "allowed": summary.allowed,
        "denied": summary.denied,
        "unmatched": summary.unmatched,
        "degraded": summary.degraded,
        "shed": summary.shed,
        "errors": summary.errors,
        "never_sent": summary.missed,
        "connections": {
            "made": summary.connects,
            "lost": summary.connections_lost,
            "attempts_failed": summary.connects_failed,
        },
        "latency_us": None
        if latency is None
        else {
            "min": latency.min,
            "mean": round(latency.mean, 3),
            **latency.percentiles,
            "max": latency.max,
            "histogram": [{"at_most": bound, "count": count} for bound, count in latency.histogram],
        },
        "interrupted": summary.interrupted,
        "gone": summary.gone,
    }
