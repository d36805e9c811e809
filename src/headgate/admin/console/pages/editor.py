"""The editor of a rule, as a form and YAML side by side, with a preview of the change; and the deletion of a rule."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from litestar import Response, get, post
from litestar.response import Redirect

from headgate.admin.catalog import FileRules
from headgate.admin.console import drafts
from headgate.admin.console.drafts import Draft
from headgate.admin.console.forms import Form, FormFields, actor_of, number_of
from headgate.admin.console.pages.rules import RuleId, redirect_to_rule
from headgate.admin.console.rendering import link, page
from headgate.admin.objects import InUse, ObjectKind, ObjectVersion, Stored, VersionConflict
from headgate.admin.routes.requests import EDITOR, Admin, WebRequest
from headgate.admin.service import AdminService
from headgate.config.problems import InvalidRules
from headgate.policy.loading import rule_from_data

_NEW = {"endpoint": "/api/**", "limit": 100, "window": "1m"}


class Edit(NamedTuple):
    """An unsaved edit of a rule."""

    rule_id: str
    """Empty for a new rule."""
    draft: Draft
    stored: Stored | None
    """The rule in force."""
    opened: int
    """The version of the rule when the editor was opened; 0: there was none."""
    was: Any = None
    """Its body then, if another user has changed it since."""
    others: tuple[ObjectVersion, ...] = ()
    """Its later versions."""

    @property
    def name(self) -> str:
        """The id under which it would be saved."""
        return self.rule_id or drafts.id_of(self.draft.body)

    @property
    def version(self) -> int:
        return self.stored.version if self.stored else 0


@get("/rule/new", opt=EDITOR)
async def new_rule(request: WebRequest, admin: Admin) -> Response[str]:
    await _check_changeable(admin)
    return await _editor(request, admin, Edit("", drafts.draft_of(_NEW), None, 0), is_begun=False)


@get("/rule/edit", opt=EDITOR)
async def edit_rule(request: WebRequest, admin: Admin, rule_id: RuleId) -> Response[str]:
    await _check_changeable(admin)
    stored = await admin.get(ObjectKind.RULE, rule_id)
    edit = Edit(rule_id, drafts.draft_of(stored.body), stored, stored.version)
    return await _editor(request, admin, edit, is_begun=False)


@post("/rule/preview", opt=EDITOR, status_code=200)
async def preview(request: WebRequest, admin: Admin, form: FormFields) -> Response[str]:
    return await _editor(request, admin, await _edit_of(admin, form))


@post("/rule/edit", opt=EDITOR, status_code=200)
async def save(request: WebRequest, admin: Admin, form: FormFields) -> Response[Any]:
    """Save a rule; if it is invalid, or another user has changed it, show that instead."""
    actor, edit = actor_of(request, form), await _edit_of(admin, form)
    if edit.draft.problems or number_of(form, "version") != edit.version:
        return await _editor(request, admin, edit, status=400 if edit.draft.problems else 409)
    body = edit.draft.body
    if form.get("do") == "shadow":
        body = {**body, "shadow": True}
    try:
        done = await admin.rules.put(ObjectKind.RULE, edit.name, body, actor, edit.version)
    except InvalidRules as error:
        draft = edit.draft.with_problems(error.problems)
        return await _editor(request, admin, edit._replace(draft=draft), status=400)
    except VersionConflict:
        return await _editor(request, admin, await _edit_of(admin, form), status=409)
    return redirect_to_rule(edit.name, done)


async def _edit_of(admin: AdminService, form: Form) -> Edit:
    """Return the edit in a form, merged with later changes of other users."""
    rule_id = form.get("id", "")
    draft = await asyncio.to_thread(drafts.read, form, rule_id)
    opened, seen = number_of(form, "opened"), number_of(form, "version")
    edit = Edit(rule_id, draft, None, opened)
    if not edit.name or (not rule_id and draft.problems):
        return edit
    stored = await admin.rules.get(ObjectKind.RULE, edit.name)
    version = stored.version if stored else 0
    if version == opened:
        return edit._replace(stored=stored)
    versions = await admin.rules.versions(ObjectKind.RULE, edit.name)
    bodies = {each.version: each.body for each in versions}
    if version != seen and stored is not None:
        draft = drafts.merge(bodies.get(seen) or {"id": edit.name}, draft, stored.body, rule_id)
    others = tuple(each for each in versions if each.version > opened)
    return edit._replace(draft=draft, stored=stored, was=bodies.get(opened), others=others)


async def _editor(
    request: WebRequest, admin: AdminService, edit: Edit, *, status: int = 200, is_begun: bool = True
) -> Response[str]:
    tried: dict[str, Any] | None = None
    if is_begun and edit.name and not edit.draft.problems:
        try:
            tried = await admin.try_rule(edit.name, edit.draft.body)
        except InvalidRules as error:
            edit = edit._replace(draft=edit.draft.with_problems(error.problems))
    after = tried["after"] if tried else None
    known: dict[str, Any] = {
        "edit": edit,
        "draft": edit.draft,
        "base": drafts.base_of(edit.draft),
        "fields": drafts.FIELDS,
        "rare": drafts.RARE,
        "message_of": drafts.message_of,
        "tried": tried,
        "rule": rule_from_data(after) if after else None,
        "is_begun": is_begun,
        "refused": status,
    }
    return page(request, "editor.html", status=status, **known)


async def _check_changeable(admin: AdminService) -> None:
    if isinstance(admin.rules, FileRules):
        await admin.rules.change()


@get("/rule/delete", opt=EDITOR)
async def delete_page(request: WebRequest, admin: Admin, rule_id: RuleId) -> Response[str]:
    """Ask for confirmation, with the objects that depend on the rule."""
    await _check_changeable(admin)
    return await _delete_page(request, admin, rule_id)


@post("/rule/delete", opt=EDITOR, status_code=200)
async def delete_rule(request: WebRequest, admin: Admin, form: FormFields, rule_id: RuleId) -> Response[Any]:
    """Delete a rule, together with its overrides if the page showed them."""
    actor, version = actor_of(request, form), number_of(form, "version")
    try:
        done = await admin.rules.delete(ObjectKind.RULE, rule_id, actor, version, drop="drop" in form)
    except (InUse, VersionConflict) as error:
        return await _delete_page(request, admin, rule_id, error)
    return Redirect(link("/rule", id=rule_id, saved=done.revision), status_code=303)


async def _delete_page(
    request: WebRequest, admin: AdminService, rule_id: str, error: Exception | None = None
) -> Response[str]:
    stored = await admin.get(ObjectKind.RULE, rule_id)
    uses = await admin.rules.uses(ObjectKind.RULE, rule_id)
    return page(request, "delete.html", status=409 if error else 200, stored=stored, uses=uses, error=error)


ROUTES = [new_rule, edit_rule, preview, save, delete_page, delete_rule]
