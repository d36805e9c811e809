"""Rules, tiers, users and settings in a database: changed together or not at all, with versions, and recorded."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from headgate.admin import audit
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.admin.objects import InUse, ObjectKind, Operation, UnknownObject, VersionConflict, operations_between
from headgate.config.problems import InvalidRules
from headgate.policy.changing import BodyChange, changed, put
from headgate.policy.dumping import to_data
from headgate.policy.loading import from_data
from tests.admin.planes import opened
from tests.policy.test_changing import DOCUMENT as RULES
from tests.policy.test_changing import STEPS

ME = Actor("me", "request-1", "a test")
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "rules": [
        {"id": "a", "limit": 5, "window": "1m"},
        {"id": "b", "limit": 10, "window": "1s", "replaces": ["a"], "endpoint": "/b/**"},
    ],
    "tiers": {"gold": {"a": {"limit": 50}}},
    "users": {"u1": {"tier": "gold", "overrides": {"a": {"limit": 7, "until": "2030-01-01T00:00:00Z"}}}},
    "default_tier": "gold",
    "deny": [{"ip": "192.0.2.0/24"}],
}


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    stamps = {"created_at", "updated_at"}
    rules = [{key: value for key, value in rule.items() if key not in stamps} for rule in document["rules"]]
    return {key: value for key, value in document.items() if value or key == "rules"} | {"rules": rules}


class TestApplying:
    async def test_what_is_applied_is_in_force_and_changes_nothing_again(self, catalog: Catalog) -> None:
        for number, document in enumerate((DOCUMENT, {**DOCUMENT, "rules": DOCUMENT["rules"][::-1]}), 1):
            done = await catalog.apply(document, ME)
            assert {entry.action for entry in done.entries} == {"create" if number == 1 else "update"}
            revision, found = await catalog.document()
            assert (done.revision, revision, without_times(found)) == (number, number, document)
            assert await catalog.apply(found, ME) == (number, ())

    async def test_a_dry_run_returns_the_changes_and_makes_none(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        changed = await catalog.apply({"version": 1, "rules": [{"id": "c", "quota": "1/s"}]}, ME, dry_run=True)
        said = {(entry.action, entry.kind, entry.subject) for entry in changed.entries}
        assert said == {
            ("create", "rule", "c"),
            ("delete", "rule", "a"),
            ("delete", "rule", "b"),
            ("delete", "tier", "gold"),
            ("delete", "user", "u1"),
            ("delete", "setting", "default_tier"),
            ("delete", "setting", "deny"),
        }
        assert without_times((await catalog.document()).document) == DOCUMENT
        assert await catalog.revision() == 1

    async def test_a_dry_run_returns_what_apply_does_and_writes_no_row(self, catalog: Catalog) -> None:
        """Where rules come, go and change places, too."""
        await catalog.apply(DOCUMENT, ME)
        sent: list[str] = []
        engine = catalog.database._engine.sync_engine
        event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: sent.append(statement))
        first, second = DOCUMENT["rules"]
        third, fourth = {"id": "c", "limit": 1, "window": "1s"}, {"id": "d", "limit": 2, "window": "1s"}
        for rules in (
            [second, first],
            [third, second, first, fourth],
            [second | {"limit": 11}, first, fourth],
            [first],
            [third, first | {"limit": 6}],
            [first | {"limit": 6}, third, fourth],
        ):
            wanted = {**DOCUMENT, "rules": [{**rule, "replaces": []} for rule in rules]}
            sent.clear()
            tried = await catalog.apply(wanted, ME, dry_run=True)
            assert not [each for each in sent if each.startswith(("INSERT", "UPDATE", "DELETE"))]
            assert await catalog.apply(wanted, ME) == tried
            assert [rule["id"] for rule in (await catalog.document()).document["rules"]] == [
                rule["id"] for rule in rules
            ]

    async def test_other_spellings_become_those_of_the_form(self, catalog: Catalog) -> None:
        rule = {"rule_id": "x", "key_type": "ip", "endpoint_pattern": "/x", "limit": 3, "window_seconds": 60}
        await catalog.apply({"version": 1, "rules": [rule]}, ME)
        stored = await catalog.get(ObjectKind.RULE, "x")
        assert stored is not None
        assert stored.body == {"id": "x", "dimension": "ip", "endpoint": "/x", "limit": 3, "window": "1m"}


class TestChanging:
    async def test_a_rule_that_makes_no_sense_with_the_others_changes_nothing(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        for operation, said in (
            (Operation(ObjectKind.RULE, "a", None), "rule 'a' does not exist"),
            (Operation(ObjectKind.RULE, "c", {"limit": -1, "window": "1s"}), "-1 is not a whole number"),
            (Operation(ObjectKind.RULE, "a", {"quota": "1/s", "replaces": ["b"]}), "replace each other"),
            (Operation(ObjectKind.RULE, "a", {"limits": ["1/s", "5/m"]}), "several limits"),
            (Operation(ObjectKind.TIER, "gold", {"nope": {"limit": 1}}), "rule 'nope' does not exist"),
            (Operation(ObjectKind.USER, "u2", {"overrides": {"nope": {"limit": 1}}}), "rule 'nope' does not exist"),
            (Operation(ObjectKind.USER, "u2", {"overrides": {"a": {"limit": "many"}}}), "not a whole number"),
            (Operation(ObjectKind.SETTING, "nope", True), "is not a setting"),
            (Operation(ObjectKind.SETTING, "ignore_case", "perhaps"), "is not"),
            (Operation(ObjectKind.USER, "u\0", {"tier": "gold"}), "printable"),
            (Operation(ObjectKind.RULE, "x" * 65, {"quota": "1/s"}), "1 to 64"),
        ):
            with pytest.raises(InvalidRules, match=said):
                await catalog.change([Operation(ObjectKind.RULE, "d", {"quota": "1/s"}), operation], ME)
        assert await catalog.revision() == 1
        assert without_times((await catalog.document()).document) == DOCUMENT

    async def test_operations_happen_together(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        await catalog.change(
            [
                Operation(ObjectKind.RULE, "a", None),
                Operation(ObjectKind.RULE, "b", {"quota": "1/s"}),
                Operation(ObjectKind.TIER, "gold", None),
                Operation(ObjectKind.USER, "u1", None),
            ],
            ME,
        )
        assert await catalog.revision() == 2
        document = (await catalog.document()).document
        assert [rule["id"] for rule in document["rules"]] == ["b"]

    async def test_the_slower_of_two_changes_is_a_conflict(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        await catalog.change([Operation(ObjectKind.RULE, "a", {"quota": "6/m"}, 1)], ME)
        with pytest.raises(VersionConflict, match="is now at version 2, not 1"):
            await catalog.change([Operation(ObjectKind.RULE, "a", {"quota": "7/m"}, 1)], ME)
        with pytest.raises(VersionConflict, match="already exists"):
            await catalog.change([Operation(ObjectKind.RULE, "a", {"quota": "7/m"}, 0)], ME)
        with pytest.raises(VersionConflict, match="no longer exists"):
            await catalog.change([Operation(ObjectKind.RULE, "c", {"quota": "7/m"}, 3)], ME)
        with pytest.raises(UnknownObject, match="does not exist"):
            await catalog.change([Operation(ObjectKind.RULE, "c", None)], ME)


class TestWhatIsInUse:
    @pytest.mark.parametrize("how", ["deleted", "changed", "nothing else"])
    async def test_an_ended_override_prevents_no_change(self, how: str, database: Database) -> None:
        ends, now = 2_000_000_000_000_000, 1_900_000_000_000_000
        overriding = {"a": {"limit": 7, "until": "2033-05-18T03:33:20Z"}, "b": {"limit": 3}}
        others = {"u2": {"overrides": {"a": {"limit": 9, "until": "2033-05-18T03:33:21Z"}}}}
        if how == "deleted":
            others = {}
        rules = [{"id": name, "limit": 5, "window": "1m"} for name in "ab"]
        document: dict[str, Any] = {"version": 1, "rules": rules, "users": {"u1": {"overrides": overriding}, **others}}
        document["users"]["u3"] = {"overrides": {"a": overriding["a"]}}
        catalog = Catalog(database, lambda: now)
        await catalog.apply(document, ME)
        await catalog.end_overrides()
        with pytest.raises(InUse, match=r"^rule 'a' is used by \d users \(u1, .*u3\); change these first"):
            await catalog.delete(ObjectKind.RULE, "a", ME)
        assert await catalog.revision() == 1
        later = Catalog(database, lambda: ends)
        if how == "deleted":
            await later.delete(ObjectKind.RULE, "a", ME)
        elif how == "changed":
            await later.change([Operation(ObjectKind.RULE, "a", {"quota": "9/s"})], ME)
        else:
            await later.end_overrides()
            await later.end_overrides()
        assert await catalog.revision() == 2
        assert (await catalog.document()).document["users"] == {"u1": {"overrides": {"b": {"limit": 3}}}, **others}
        async with catalog.database.reading() as connection:
            assert (await audit.verify(connection)).fault == ""
            entries, _ = await audit.page(connection, {"subject": "u1"}, 0, 1)
            assert entries[0]["after"] == {"overrides": {"b": {"limit": 3}}}


class TestCatchingUp:
    @pytest.mark.parametrize("count", [3, 4, 5])
    async def test_changes_in_slices_are_complete(
        self, catalog: Catalog, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Thousands are read and written in slices, so that decisions in the same process go on meanwhile."""
        monkeypatch.setattr("headgate.admin.tables.AT_ONCE", 2)
        users = {f"u{number}": {"overrides": {"a": {"limit": 7 + number}}} for number in range(count)}
        changed = {name: {"overrides": {"a": {"limit": 99}}} for name in users}
        await catalog.apply({**DOCUMENT, "users": {}}, ME)
        for wanted in (users, changed, {}):
            before = await catalog.revision()
            done = await catalog.apply({**DOCUMENT, "users": wanted}, ME)
            assert (await catalog.document()).document["users"] == wanted
            changes = await catalog.changed_since(before)
            assert changes is not None
            assert len(changes.changes) == len(done.entries) >= count
        async with catalog.database.reading() as connection:
            assert not (await audit.verify(connection)).fault

    async def test_the_same_rules_are_the_same_text(self, catalog: Catalog) -> None:
        """Whatever the order of changes, two exports differ only where the rules do."""
        await catalog.apply(DOCUMENT, ME)
        for name, limit in (("u3", 1), ("u2", 1), ("u1", 1), ("u2", 2)):
            body = {"overrides": {"a": {"limit": limit}}}
            await catalog.change([Operation(ObjectKind.USER, name, body)], ME)
        assert list((await catalog.document()).document["users"]) == ["u1", "u2", "u3"]

    async def test_a_change_of_many_objects_takes_no_more_queries_than_of_few(self, catalog: Catalog) -> None:
        """For who changes and for who follows: the time that 100,000 users take grows with their number, not faster."""
        statements: list[str] = []
        await catalog.apply(DOCUMENT, ME)
        engine = catalog.database._engine.sync_engine
        event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        counts = []
        for first, last in ((0, 2), (2, 3000)):
            names = [f"u{number}" for number in range(first, last)]
            statements.clear()
            operations = [Operation(ObjectKind.USER, name, {"overrides": {"a": {"limit": 7}}}) for name in names]
            done = await catalog.change(operations, ME)
            changes = await catalog.changed_since(done.revision - 1)
            assert changes is not None
            assert len((await catalog.about(changes))["users"]) == len(names)
            counts.append(len(statements))
        assert counts[1] <= counts[0]  # the first has to connect as well

    def test_partial_validation_equals_validation_of_everything(self, url: str) -> None:
        @settings(max_examples=15, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.lists(STEPS, min_size=1, max_size=3), min_size=1, max_size=6))
        def holds(steps: list[list[BodyChange]]) -> None:
            async def within() -> None:
                async with opened(url) as database:
                    await work(Catalog(database), steps)

            asyncio.run(within())

        async def work(catalog: Catalog, steps: list[list[BodyChange]]) -> None:
            await catalog.apply(RULES, ME)
            whole = await catalog.document()
            followed = from_data(whole.document)
            for step in steps:  # of which a follower sees each, or several at once
                for each in step:
                    wanted = deepcopy((await catalog.document()).document)
                    put(wanted, [each])
                    operation = Operation(ObjectKind(each.kind), each.id, each.body)
                    try:
                        from_data(wanted)
                    except InvalidRules:
                        with pytest.raises(InvalidRules):
                            await catalog.change([operation], ME)
                    else:
                        with suppress(UnknownObject):
                            await catalog.change([operation], ME)
                changes = await catalog.changed_since(whole.revision)
                assert changes is not None
                from_data(await catalog.about(changes))
                whole = await catalog.document()
                followed = changed(followed, changes.changes)
                assert followed == from_data(whole.document)

        holds()

    async def test_changes_since_an_old_revision_are_unknown(
        self, monkeypatch: pytest.MonkeyPatch, catalog: Catalog
    ) -> None:
        monkeypatch.setattr("headgate.admin.transaction.KEPT_CHANGES", 2)
        await catalog.apply(DOCUMENT, ME)
        for number in range(4):
            await catalog.change([Operation(ObjectKind.USER, f"v{number}", {"tier": "gold"})], ME)
        assert await catalog.changed_since(1) is None
        assert await catalog.changed_since(3) is not None
        assert await catalog.changed_since(9) is None, "it does not exist"


class TestAudit:
    def test_the_digest_of_an_entry_stays_what_it_was(self) -> None:
        """Else the trails of databases that are in use would not verify any more."""
        row = {
            "sequence": 7,
            "at": 1_800_000_000_000_000,
            "actor": "ada",
            "action": "update",
            "kind": "user",
            "subject": '\u00fc "1"',
            "before": {"tier": "gold"},
            "after": {"tier": "premium", "overrides": {"a": {"limit": 7}}},
            "request_id": "r",
            "reason": "caf\u00e9",
            "revision": 3,
            "previous": "0" * 64,
        }
        assert audit.digest_of(row) == "304f17c677db6fde99cf30c593fdca69589c17dfea76ac74a1d2f653c4457c47"

    async def test_tampering_shows(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        for tampering, said in (
            ("UPDATE audit SET actor = 'nobody' WHERE sequence = 3", "entry 3, or an earlier one, was changed"),
            ("UPDATE audit SET after = '{\"limit\": 1}' WHERE sequence = 2", "entry 2, or an earlier one, was changed"),
            ("DELETE FROM audit WHERE sequence = 4", "entries 4 to 4 are missing"),
            ("UPDATE audit SET sequence = 99 WHERE sequence = 6", "missing"),
        ):
            async with catalog.database.writing() as connection:
                assert (await audit.verify(connection)).fault == ""
                await connection.execute(text(tampering))
                assert said in (await audit.verify(connection)).fault, tampering
                await connection.rollback()

    async def test_a_cut_end_shows_beside_a_digest_that_was_noted(self, catalog: Catalog) -> None:
        await catalog.apply(DOCUMENT, ME)
        async with catalog.database.reading() as connection:
            noted = (await audit.verify(connection)).last
            assert (await audit.verify(connection, noted)).fault == ""
        async with catalog.database.writing() as connection:
            await connection.execute(text("DELETE FROM audit WHERE sequence > 3"))
        async with catalog.database.reading() as connection:
            assert (await audit.verify(connection)).fault == ""
            assert "is not in the chain" in (await audit.verify(connection, noted)).fault

    async def test_old_entries_go_and_the_chain_still_holds(self, catalog: Catalog) -> None:
        day = 86_400_000_000
        old = Catalog(catalog.database, clock=lambda: 10 * day)
        await old.apply(DOCUMENT, ME)
        new = Catalog(catalog.database, clock=lambda: 95 * day)
        await new.change([Operation(ObjectKind.RULE, "c", {"quota": "1/s"})], ME)
        async with catalog.database.exclusively() as connection:
            assert await audit.prune(connection, 101 * day) == 0, "it removes once a day"
            assert await audit.prune(connection, 102 * day) == 6
            assert await audit.prune(connection, 102 * day) == 0
        await new.change([Operation(ObjectKind.RULE, "d", {"quota": "1/s"})], ME)
        async with catalog.database.reading() as connection:
            chain = await audit.verify(connection)
        assert (chain.entries, chain.fault, chain.removed) == (3, "", 6)
        async with catalog.database.exclusively() as connection:
            assert await audit.prune(connection, 400 * day) == 3, "the cut, too, is old some day"
            chain = await audit.verify(connection)
        assert (chain.entries, chain.fault, chain.removed) == (1, "", 9)

    @pytest.mark.parametrize("cuts", [0, 1])
    async def test_a_beginning_that_the_retention_did_not_move_shows(self, cuts: int, catalog: Catalog) -> None:
        """And remains visible: the retention does not sign what others have removed."""
        day = 86_400_000_000
        for number in range(10):
            at = number * 10 * day
            change = [Operation(ObjectKind.RULE, "a", {"limit": number + 1, "window": "1s"})]
            await Catalog(catalog.database, clock=lambda at=at: at).change(change, ME)  # type: ignore[misc]
        async with catalog.database.exclusively() as connection:
            assert await audit.prune(connection, 110 * day) == 2
        async with catalog.database.reading() as connection:
            noted = (await connection.execute(text("SELECT digest FROM audit WHERE sequence = 5"))).scalar_one()
            assert not (await audit.verify(connection, noted)).fault
        digest = "(SELECT digest FROM audit WHERE sequence = 6)"
        async with catalog.database.exclusively() as connection:
            await connection.execute(text(f"UPDATE audit_start SET sequence = 6, digest = {digest}"))  # noqa: S608
            await connection.execute(text("DELETE FROM audit WHERE sequence <= 6"))
            for _ in range(cuts):
                assert await audit.prune(connection, 170 * day) == 0
        async with catalog.database.reading() as connection:
            said = "entries 1 to 6 are missing, and were not removed by the retention"
            assert (await audit.verify(connection)).fault == said
        async with catalog.database.exclusively() as connection:  # by an attacker who knows how a cut is recorded
            start = await audit._start(connection)
            before = {"sequence": 2, "digest": "of nothing that was"}
            await audit.append(connection, [audit.AuditEntry("cut", "audit", "", before, start)], ME, 1, 120 * day)
            assert "does not follow" in (await audit.verify(connection)).fault
            await connection.execute(text("DELETE FROM audit WHERE sequence = 12"))
            cut = (await connection.execute(text("SELECT after FROM audit WHERE sequence = 11"))).scalar_one()
            before = cut if isinstance(cut, dict) else json.loads(cut)
            await audit.append(connection, [audit.AuditEntry("cut", "audit", "", before, start)], ME, 1, 120 * day)
            assert not (await audit.verify(connection)).fault, "which is why digests are noted elsewhere"
            assert "is not in the chain" in (await audit.verify(connection, noted)).fault

    async def test_a_beginning_that_was_deleted_shows_and_hinders_nothing(self, catalog: Catalog) -> None:
        day = 86_400_000_000
        for number in range(2):
            change = [Operation(ObjectKind.RULE, "a", {"limit": number + 1, "window": "1s"})]
            await Catalog(catalog.database, clock=lambda: 0).change(change, ME)
        async with catalog.database.exclusively() as connection:
            await connection.execute(text("DELETE FROM audit_start"))
            assert await audit.prune(connection, 200 * day) == 0
            assert "where the trail begins was deleted" in (await audit.verify(connection)).fault
            await connection.execute(text("DELETE FROM audit"))
            assert "where the trail begins was deleted" in (await audit.verify(connection)).fault
        await catalog.change([Operation(ObjectKind.RULE, "a", {"limit": 9, "window": "1s"})], ME)


_BODIES = st.fixed_dictionaries({"limit": st.integers(1, 9), "window": st.sampled_from(["1s", "1m"])})
_DOCUMENTS = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "rules": st.dictionaries(st.sampled_from("abcd"), _BODIES).map(
            lambda rules: [{"id": name, **body} for name, body in rules.items()]
        ),
        "users": st.dictionaries(st.sampled_from("xyz"), st.just({"tier": "gold"})),
        "default_tier": st.sampled_from(["gold", "silver"]),
    }
)


@settings(
    max_examples=5, phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(_DOCUMENTS, min_size=1, max_size=4))
async def test_whatever_is_applied_after_whatever_is_in_force_then(
    catalog: Catalog, documents: list[dict[str, Any]]
) -> None:
    seen = await catalog.revision()
    for document in documents:
        before = (await catalog.document()).document
        await catalog.apply(document, ME)
        revision, found = await catalog.document()
        assert without_times(to_data(from_data(found))) == without_times(to_data(from_data(document)))
        assert operations_between(found, document) == []
        changes = await catalog.changed_since(seen)
        if changes is None:  # another order of rules, which single changes cannot express
            assert revision == seen + 1
        else:
            assert changes.revision == revision
            assert bool(changes.changes) == (revision != seen)
            put(before, changes.changes)
            assert without_times(before) == without_times(found)
        seen = revision
