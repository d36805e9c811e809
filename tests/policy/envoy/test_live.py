"""Descriptor trees that change while they are in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate import InvalidRule
from headgate.policy.envoy import Descriptor, LiveDescriptors

EDGE = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 10}}]\n"


def limit_of(live: LiveDescriptors, domain: str = "edge") -> int | None:
    (match,) = live.policy.match(domain, [Descriptor((("user", "ada"),))]).matches
    return match.limits[0].quota.limit if match.limits else None


def looked(live: LiveDescriptors) -> bool:
    """Look until the files have stayed the same between two looks."""
    return [live.refresh(), live.refresh()][1]


def test_files_are_changed_added_broken_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(EDGE)
    live = LiveDescriptors(tmp_path)
    assert (limit_of(live), limit_of(live, "other")) == (10, None)
    file.write_text(EDGE.replace("10", "20"))
    (tmp_path / "other.yml").write_text(EDGE.replace("edge", "other"))
    assert looked(live)
    assert (limit_of(live), limit_of(live, "other")) == (20, 10)
    file.write_text(EDGE.replace("minute", "fortnight"))
    assert not looked(live)
    assert "fortnight" in live.statistics().error
    for each in tmp_path.iterdir():
        each.unlink()
    assert not looked(live)
    assert (limit_of(live), live.statistics().failures) == (20, 2)


def test_a_folder_without_files_is_refused_at_first(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidRule, match="no file there"):
            LiveDescriptors(folder)
