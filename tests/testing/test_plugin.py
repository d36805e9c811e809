"""The pytest plugin, and the suite for stores, as their users meet them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USES_THE_FIXTURE = """
from headgate import Limiter

def test_time_is_a_matter_of_the_test(manual_clock):
    limiter = Limiter("1/minute", clock=manual_clock)
    assert limiter.check("user")
    assert not limiter.check("user")
    manual_clock.advance(60)
    assert limiter.check("user")
"""
GENEROUS_STORE = """
import msgspec
from hypothesis import Phase, settings

from headgate import MemoryStore
from headgate.core.plan import Verb
from headgate.testing.conformance import StoreConformance, StoreTraces
from headgate.testing.reference import ReferenceStore

settings.register_profile("first", derandomize=True, phases=[Phase.generate])  # the first trace will do
settings.load_profile("first")

class Generous(MemoryStore):
    def run(self, call):
        return super().run(msgspec.structs.replace(call, cost=call.cost + 1) if call.verb is Verb.REFUND else call)

class TestGenerous(StoreConformance):
    def make_store(self, clock):
        return Generous(clock=clock)

class TestUnlocked(StoreConformance):
    def make_store(self, clock):
        return ReferenceStore(clock)  # for one thread

class TestGenerousTraces(StoreTraces):
    def make_store(self, clock):
        return Generous(clock=clock)

class TestNothing(StoreTraces):
    pass
"""


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_fixture_is_there_without_any_configuration(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, USES_THE_FIXTURE)
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


def test_the_suite_finds_a_store_that_breaks_the_contract(tmp_path: Path) -> None:
    result = run_pytest(
        tmp_path, GENEROUS_STORE, "-k", "Traces or Nothing or 16_threads or refund_gives or retry or keys"
    )
    assert result.returncode == 1, result.stdout
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert any("test_refund_gives_back_at_most_what_is_used" in line for line in failed)
    assert any("TestGenerousTraces" in line for line in failed)
    assert any("TestNothing" in line for line in failed)
    assert "TestNothing must define make_store(clock)" in result.stdout
    assert not any("test_retry_after_is_exact" in line for line in failed)
    unlocked = [line for line in failed if "TestUnlocked" in line]
    assert len(unlocked) > 5
    assert all("16_threads" in line for line in unlocked)
