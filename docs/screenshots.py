"""Takes the pictures of the console that docs/console.md and the README show, from the demo.

Run it with ``make screenshots``, or with ``--folder demo`` while ``make demo`` runs. Chromium is needed.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = Path(__file__).parent / "images"
LARGEST = 250_000
"""Bytes of a picture."""
PATIENCE = 300
"""Seconds for the demo to be ready."""
PHONE: ViewportSize = {"width": 360, "height": 740}
DESK: ViewportSize = {"width": 1280, "height": 1000}
PICTURES: Mapping[Literal["light", "dark"], Sequence[str]] = {
    "light": ("overview", "who", "rule", "editor", "revisions", "try"),
    "dark": ("overview",),
}
ON_PHONE = ("who",)


def _show_rule(page: Page, _: Mapping[str, Any]) -> None:
    page.goto("/rule?id=search-address")


def _show_customer(page: Page, known: Mapping[str, Any]) -> None:
    page.goto("/")
    page.locator("#find").fill(known["customer"])
    page.locator("#find").press("Enter")
    page.wait_for_url("**/who?**")


def _show_editor(page: Page, _: Mapping[str, Any]) -> None:
    page.goto("/rule/edit?id=login-address")
    page.locator("[name='f.limit']").fill("5")
    page.locator("[name='f.limit']").blur()
    page.wait_for_selector("#effects .removed, #effects .added")


def _show_trial(page: Page, known: Mapping[str, Any]) -> None:
    page.goto(f"/try?method=GET&path=/api/v1/search&user={known['customer']}")


def _at(path: str) -> Callable[[Page, Mapping[str, Any]], object]:
    return lambda page, _: page.goto(path)


PAGES: Mapping[str, Callable[[Page, Mapping[str, Any]], object]] = {
    "overview": _at("/"),
    "rule": _show_rule,
    "editor": _show_editor,
    "who": _show_customer,
    "try": _show_trial,
    "revisions": _at("/revisions"),
}


_SERIES: Sequence[tuple[str, ViewportSize, Mapping[Literal["light", "dark"], Sequence[str]]]] = (
    ("", DESK, PICTURES),
    ("phone-", PHONE, {"light": ON_PHONE}),
)


@contextmanager
def _demo(folder: Path | None, seconds: float) -> Iterator[Mapping[str, Any]]:
    """Return what is known of a demo that runs, or of one that is started here and has run for some seconds."""
    if folder is not None:
        yield json.loads((folder / "demo.json").read_text())
        return
    with TemporaryDirectory(prefix="headgate-screenshots-") as place:
        own = Path(place) / "demo"
        command = [sys.executable, "-m", "examples.demo", "--any-port", "--folder", str(own)]
        demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)  # noqa: S603  our own
        try:
            known = _ready(own / "demo.json", demo)
            print(f"the demo runs for {seconds:g} s ...", flush=True)
            time.sleep(seconds)
            yield known
        finally:
            demo.terminate()
            demo.wait()


def _ready(file: Path, demo: subprocess.Popen[bytes]) -> Mapping[str, Any]:
    ends = time.monotonic() + PATIENCE
    while demo.poll() is None and time.monotonic() < ends:
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if known.get("ready"):
            return known
        time.sleep(0.2)
    raise SystemExit("the demo did not get ready")


def _write(name: str, picture: bytes) -> None:
    """Write a picture in as few colours as it needs."""
    exact = Image.open(io.BytesIO(picture)).convert("RGB")
    few = exact.quantize(256, kmeans=3, dither=Image.Dither.NONE)  # without means, a few red letters turn grey
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    if len(out.getvalue()) > LARGEST:
        raise SystemExit(f"{name} has {len(out.getvalue()):,} bytes; at most {LARGEST:,} are good for a page")
    (IMAGES / f"console-{name}.png").write_bytes(out.getvalue())
    print(f"{name}: {len(out.getvalue()):,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of a demo that runs; default: one is started")
    parser.add_argument("--seconds", type=float, default=600, help="for which it runs before [600]")
    parser.add_argument("--only", nargs="*", default=[*PAGES], choices=[*PAGES], help="pages")
    options = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is needed: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    with _demo(options.folder, options.seconds) as known, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, chromium_sandbox=False, args=["--disable-dev-shm-usage"]
        )
        for kind, size, pictures in _SERIES:
            context = browser.new_context(base_url=known["console"], viewport=size, reduced_motion="reduce")
            page = context.new_page()
            page.goto("/login")
            page.locator("input[name=key]").fill(known["keys"]["admin"])
            page.locator("input[name=key]").press("Enter")
            page.wait_for_url(known["console"])
            page.wait_for_timeout(5000)  # all nodes write their figures only while a page is open
            for colour, names in pictures.items():
                page.emulate_media(color_scheme=colour)
                for name in [each for each in names if each in options.only]:
                    PAGES[name](page, known)
                    page.wait_for_timeout(1500)  # figures that are live
                    whole = name == "editor"  # below the difference is what a change would have refused
                    _write(f"{kind}{name}-{colour}", page.screenshot(full_page=whole))
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
