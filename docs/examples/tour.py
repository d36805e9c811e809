"""Try the library in a terminal: ``make tour``.

Every line you type is a request. Without a terminal it shows a short demonstration, then does what its input says.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from headgate import Algorithm, Clock, Decision, HeadgateError, Limiter, MemoryStore, Pressure, Quota, SystemClock
from headgate.testing import ManualClock

QUOTA = "5/10s"
PATIENCE = 30  # seconds that `acquire` waits at most
INTRO = """\
Headgate decides whether a request may pass. Each key has its own count.
This demo limits every key to {quota}, in the memory of this process.

  Enter        one request for the same key again (five pass, then wait or try another)
  alice        one request for the key alice
  algorithms   the same requests through all six algorithms
  help         all commands
"""
HELP = """\
  KEY, or check KEY   one request for KEY; Enter repeats the last key
  peek KEY            show whether a request would pass; takes nothing
  acquire KEY         wait for a turn, up to {patience} s
  reset KEY           clear the usage of KEY
  quota TEXT          change the quota, such as: quota 3/5s gcra; 20/minute
  algorithms          the same requests through all six algorithms
  quit                leave (so do Ctrl-D and Ctrl-C)
"""
COLOURS = {"red": 31, "green": 32, "yellow": 33, "dim": 2}


class Demo:
    """One limiter and the commands on it."""

    def __init__(self, clock: Clock, *, colour: bool = False) -> None:
        self._store = MemoryStore(clock=clock)
        self._limiter = Limiter(QUOTA, store=self._store)
        self._colour = colour
        self._key = "you"
        self._commands: dict[str, Callable[[str], None]] = {
            "check": self._check,
            "peek": self._peek,
            "acquire": self._acquire,
            "reset": self._reset,
            "quota": self._change,
            "algorithms": self._compare,
            "help": self._help,
        }

    def do(self, line: str) -> None:
        """Run one line of input; print its mistakes instead of raising them."""
        word, _, rest = line.strip().partition(" ")
        command = self._commands.get(word.lower())
        key = self._key
        try:
            if command:
                command(rest.strip())
            else:
                self._check(line.strip())
        except HeadgateError as error:
            self._key = key
            print(f"  {self._paint('red', type(error).__name__)}: {error}")

    def _check(self, key: str) -> None:
        self._show(self._limiter.check(self._chosen(key)))

    def _peek(self, key: str) -> None:
        decision = self._limiter.peek(self._chosen(key))
        self._show(decision, "would pass" if decision else "would not")

    def _acquire(self, key: str) -> None:
        key = self._chosen(key)
        wait = self._limiter.peek(key).retry_after
        if 0 < wait <= PATIENCE:
            print(f"  waiting {spoken(wait)} ...", flush=True)
        decision = self._limiter.acquire(key, timeout=PATIENCE)
        self._show(decision)
        if not decision:
            print(f"  not waiting: the turn is more than {PATIENCE} s away")

    def _reset(self, key: str) -> None:
        self._limiter.reset(self._chosen(key))
        print(f"  {shown(self._key)} has no usage now")

    def _change(self, text: str) -> None:
        if text:
            self._limiter = Limiter(text, store=self._store)
        for quota in self._limiter.quotas:
            print(f"  {quota}, up to {quota.capacity} at once")
        if text:
            print("  A new limit keeps the usage; a new algorithm or window starts afresh.")

    def _compare(self, _: str) -> None:
        print("\n".join(f"  {line}" for line in comparison()))

    def _help(self, _: str) -> None:
        print(HELP.format(patience=PATIENCE), end="")

    def _chosen(self, key: str) -> str:
        self._key = key or self._key
        return self._key

    def _show(self, decision: Decision, verdict: str = "") -> None:
        verdict = verdict or ("allowed" if decision else "denied")
        colour = "red" if not decision else "yellow" if decision.state is Pressure.WARNING else "green"
        facts = [measure(decision)]
        if not decision:
            facts.append(f"retry after {spoken(decision.retry_after)}")
        if decision.delay:
            facts.append(f"its turn comes in {spoken(decision.delay)}")
        if decision and decision.state is not Pressure.NORMAL:
            facts.append(f"({decision.state})")
        print(f"  {self._paint(colour, verdict.ljust(7))}  {shown(self._key)}  {'  '.join(facts)}")
        for part in decision.parts:
            print(self._paint("dim", f"           {part.quota!s:<24} {measure(part)}"))

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self._colour else text


def measure(decision: Decision) -> str:
    """Return a bar of the remaining units."""
    width = min(decision.limit, 20)
    full = -(-decision.remaining * width // decision.limit)
    return f"[{'#' * full}{'.' * (width - full)}] {decision.remaining} of {decision.limit} left"


def spoken(seconds: float) -> str:
    """Return a duration as text."""
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


def shown(key: str) -> str:
    """Return a key without control characters, and short."""
    text = key if key.isprintable() else repr(key)
    return text if len(text) <= 40 else f"{text[:37]}..."


def comparison() -> Iterator[str]:
    """Run the same requests through all algorithms; a column of the strip is a second."""
    second, window = 1_000_000, 10_000_000
    bursts = [at * second + n * second // 12 for at in (9, 10) for n in range(12)]
    arrivals = bursts + [18 * second + n * second // 3 for n in range(48)]
    yield "10 per 10 s. 24 requests around the boundary of a window, then 3 a second."
    yield "Each column is a second, each digit the requests let through in it (+: ten or more)."
    yield f"{'':<23} {'':<26} passed   in 2 s   in 10 s"
    yield _row("arrivals", arrivals, window)
    for algorithm in Algorithm:
        quota = Quota(limit=10, window_us=window, algorithm=algorithm)
        state, passed = None, []
        for at in arrivals:
            state, decision = quota.step(state, 1, at)
            if decision:
                passed.append(at)
        yield _row(algorithm, passed, window)
    yield "fixed_window lets twice its limit through within 2 s; the others do not."


def _row(name: str, times: Sequence[int], window: int) -> str:
    counts = [sum(time // 1_000_000 == second for time in times) for second in range(8, 34)]
    strip = "".join("." if not count else str(count) if count < 10 else "+" for count in counts)
    in_two, in_ten = (
        max(sum(time - length < other <= time for other in times) for time in times) for length in (2_000_000, window)
    )
    return f"{name:<23} {strip} {len(times):>6} {in_two:>8} {in_ten:>9}"


def demonstrate() -> None:
    """Show the essentials with a manual clock."""
    clock = ManualClock()
    demo = Demo(clock)

    def typed(*lines: str) -> None:
        for line in lines:
            print(f"> {line}")
            demo.do(line)

    print("A demonstration (run it in a terminal to type yourself):\n")
    typed(*["alice"] * 6)
    typed("bob")
    print("\n... 2 s later, exactly the time in the response:")
    clock.advance(2)
    typed("alice", "alice")
    print("\nTwo limits, one decision; a refused request takes from neither:")
    typed("quota 2/s; 3/minute", *["carol"] * 3)
    clock.advance(1)
    typed("carol", "carol")
    print("\nThe six algorithms:")
    typed("algorithms")


def typed_lines() -> Iterator[str]:
    """Read lines from the terminal, with its line editing where there is one."""
    with suppress(ImportError):
        importlib.import_module("readline")
    while True:
        yield input("> ")


def piped_lines() -> Iterator[str]:
    """Read lines from a pipe or file, repeating each, so that the output can be read alone."""
    for line in sys.stdin:
        print(f"> {line.rstrip()}")
        yield line


def converse(demo: Demo, lines: Iterator[str]) -> None:
    """Run all of `lines`."""
    for line in lines:
        if line.strip().lower() in {"quit", "exit", "q"}:
            return
        demo.do(line)
        sys.stdout.flush()


def main() -> None:
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape" if stream is sys.stdin else "backslashreplace")
    interactive = sys.stdin.isatty()
    demo = Demo(SystemClock(), colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    try:
        print(INTRO.format(quota=QUOTA))
        if not interactive:
            demonstrate()
            sys.stdout.flush()
        with suppress(EOFError, KeyboardInterrupt):
            converse(demo, typed_lines() if interactive else piped_lines())
        print("\nBye. The first steps are in docs/start.md." if interactive else "\nBye.", flush=True)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
