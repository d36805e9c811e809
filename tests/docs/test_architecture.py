"""The pages for contributors name files that exist, and all parts of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headgate"
PAGES = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")
NAMED = re.compile(r"`([\w./-]+\.(?:py|lua|proto|toml)|(?:src|tests|benchmarks)/[\w./-]+)`")
PLACED = re.compile(r"`([\w.]+)`\s+(?:in|of)\s+`([\w./-]+\.(?:py|lua))`")
"""A mention of a name in a file: a function, a class or a member of one."""
PLACEHOLDER = "NAME"
"""In names of files to be written."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist_and_have_the_names_that_pages_place_there(page: Path) -> None:
    text = page.read_text()
    names, placed = [name for name in NAMED.findall(text) if PLACEHOLDER not in name], PLACED.findall(text)
    assert len(names) > 20
    assert [name for name in names if not ((PACKAGE / name).exists() or (ROOT / name).exists())] == []
    assert len(placed) > 5
    for names, file in placed:
        content = next(folder / file for folder in (PACKAGE, ROOT) if (folder / file).exists()).read_text()
        missing = [name for name in names.split(".") if not re.search(rf"\b{name}\b", content)]
        assert missing == [], f"{names} in {file}"


def test_the_picture_has_every_part_of_the_package() -> None:
    picture = PAGES[0].read_text().split("```")[1]
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))} - {"testing"}
    assert {part for part in parts if f"{part}/" not in picture} == set()
    inside = {path.name for path in (PACKAGE / "server").iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    walked = PAGES[0].read_text()
    assert {part for part in inside - {"identity", "protos"} if f"server/{part}/" not in walked} == set()


def test_every_word_of_the_glossary_is_explained_once() -> None:
    words = re.findall(r"^\| ([a-z]+) \|", PAGES[0].read_text().split("## Glossary")[1], flags=re.MULTILINE)[1:]
    assert len(words) > 15
    assert len(set(words)) == len(words)


def test_the_readme_links_both() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "(docs/architecture.md)" in readme
    assert "(CONTRIBUTING.md)" in readme
