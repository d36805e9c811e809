"""The rules of the admin plane: in the catalog of a database, or read-only in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from headgate.admin.catalog import Catalog
from headgate.admin.objects import RULE_DEFAULTS, ObjectKind, ObjectVersion, Stored, bodies_of
from headgate.core.errors import HeadgateError
from headgate.policy.dumping import to_data
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import Whole


class RulesInFile(HeadgateError):
    """A change of rules that are in a file."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the rules come from the file {path}, so they are changed there; to change them here, serve from a "
            f"database: headgate rules apply {path} --database URL, then headgate serve --database URL"
        )


class FileRules:
    """Read-only rules of a file, with the methods of `Catalog`; `version` returns the number of loads."""

    def __init__(self, path: str, ruleset: Callable[[], Ruleset], version: Callable[[], int]) -> None:
        self._path, self._ruleset, self._version = path, ruleset, version

    @property
    def source(self) -> str:
        return f"the file {self._path}"

    async def revision(self) -> int:
        return self._version()

    async def document(self) -> Whole:
        return Whole(self._version(), to_data(self._ruleset()))

    async def get(self, kind: ObjectKind, name: str) -> Stored | None:
        body = self._bodies(kind).get(name)
        return None if body is None else Stored(kind, name, body, self._version(), 0, 0)

    async def page(
        self, kind: ObjectKind, filters: Mapping[str, Any], sort: str, offset: int, limit: int
    ) -> tuple[list[Stored], int]:
        bodies = self._bodies(kind)
        found = [name for name, body in bodies.items() if _passes(name, body, filters)]
        if sort.lstrip("-") != "position":
            found.sort(reverse=sort.startswith("-"))
        some = [Stored(kind, name, bodies[name], self._version(), 0, 0) for name in found[offset : offset + limit]]
        return some, len(found)

    async def versions(self, kind: ObjectKind, name: str) -> list[ObjectVersion]:
        """Return the present version: earlier ones are not known."""
        stored = await self.get(kind, name)
        return [] if stored is None else [ObjectVersion(stored.version, stored.body, stored.version, 0, self._path)]

    async def uses(self, kind: ObjectKind, name: str) -> dict[str, list[str]]:
        ruleset = self._ruleset()
        found = {
            "users": [each for each, user in ruleset.users.items() if name in user.overrides],
            "tiers": [each for each, changes in ruleset.tiers.items() if name in changes],
            "rules": [rule.id for rule in ruleset.rules if name in rule.replaces],
        }
        return {how: names for how, names in found.items() if names and kind is ObjectKind.RULE}

    async def change(self, *_: object, **__: object) -> NoReturn:
        raise RulesInFile(self._path)

    edit = apply = delete = roll_back = undo = change

    def _bodies(self, kind: ObjectKind) -> dict[str, Any]:
        document = to_data(self._ruleset())
        if kind is ObjectKind.RULE:  # with the times in the file
            return {rule["id"]: rule for rule in document.get("rules", ())}
        return bodies_of(document, kind)


RuleCatalog: TypeAlias = Catalog | FileRules


def _passes(name: str, body: Any, filters: Mapping[str, Any]) -> bool:
    for field, wanted in filters.items():
        if field == "search":
            texts = (name, body.get("name", ""), body.get("endpoint", ""))
            if not any(wanted.lower() in text.lower() for text in texts):
                return False
        elif body.get(field, RULE_DEFAULTS.get(field, "")) != wanted:
            return False
    return True
