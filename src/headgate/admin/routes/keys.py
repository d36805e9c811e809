"""Routes of API keys, and of consumers, the clients of the protected API, with their keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody, PathParameter

from headgate.admin.keys import ConsumerKey, KeyRole, NewKey
from headgate.admin.routes.requests import (
    ADMIN,
    EDITOR,
    VIEWER,
    Admin,
    Json,
    JsonRequest,
    Limit,
    Name,
    Offset,
    actor_of,
)
from headgate.admin.service import consumer_data, key_data
from headgate.admin.tables import epoch_us


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A key to be created."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128, examples=["deploy-bot"])]
    role: KeyRole
    expires_in: Annotated[int, msgspec.Meta(ge=60, le=315_360_000, description="Seconds.")] | None = None


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    """The replacement of a key."""

    overlap: Annotated[int, msgspec.Meta(ge=0, le=2_592_000, description="Seconds until the old key ends.")] = 0


@get("/keys", opt=ADMIN, summary="List API keys")
async def list_keys(admin: Admin) -> Json:
    """List keys, without their texts."""
    return {"items": [key_data(key) for key in await admin.keys.all()]}


@post("/keys", opt=ADMIN, summary="Create an API key", status_code=201)
async def create_key(admin: Admin, request: JsonRequest, data: JSONBody[KeyBody]) -> Json:
    """Create a key. Only this response has its text."""
    expires = None if data.expires_in is None else epoch_us() + data.expires_in * 1_000_000
    made = await admin.keys.create(data.name, data.role, actor_of(request), expires_at=expires)
    return {**key_data(made.key), "key": made.text}


@post("/keys/{key_id:str}/rotate", opt=ADMIN, summary="Replace an API key", status_code=201)
async def rotate_key(admin: Admin, request: JsonRequest, key_id: Name, data: JSONBody[RotateBody]) -> Json:
    """Replace a key by another with its name and role."""
    made = await admin.keys.rotate(key_id, actor_of(request), overlap_us=data.overlap * 1_000_000)
    return {**key_data(made.key), "key": made.text}


@delete("/keys/{key_id:str}", opt=ADMIN, summary="Revoke an API key", status_code=204)
async def revoke_key(admin: Admin, request: JsonRequest, key_id: Name) -> None:
    """End a key immediately."""
    await admin.keys.revoke(key_id, actor_of(request))


# Consumers


ConsumerId = Annotated[
    str, PathParameter(min_length=1, max_length=512, description="The name of a consumer, and of its user.")
]


class ConsumerBody(msgspec.Struct, forbid_unknown_fields=True):
    """A consumer to be created."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=512, examples=["acme"])]
    tier: Annotated[str, msgspec.Meta(max_length=64, description="Empty: that of the user of this name.")] = ""
    tenant: Annotated[str, msgspec.Meta(max_length=512, description="The tenant that its keys identify.")] = ""
    expires_in: Annotated[int, msgspec.Meta(ge=60, le=315_360_000, description="Seconds.")] | None = None


@get("/consumers", opt=VIEWER, summary="List consumers")
async def list_consumers(admin: Admin, offset: Offset = 0, limit: Limit = 100) -> Json:
    """List consumers and their keys, without the texts of keys."""
    return (await admin.consumer_page(offset, limit))._asdict()


@post("/consumers", opt=EDITOR, summary="Create a consumer", status_code=201)
async def create_consumer(admin: Admin, request: JsonRequest, data: JSONBody[ConsumerBody]) -> Json:
    """Create a consumer and its key. Only this response has the text of the key."""
    expires = None if data.expires_in is None else epoch_us() + data.expires_in * 1_000_000
    return _consumer_key(
        await admin.create_consumer(data.name, data.tier, actor_of(request), tenant=data.tenant, expires_at=expires)
    )


@get("/consumers/{consumer_id:str}", opt=VIEWER, summary="Get a consumer")
async def get_consumer(admin: Admin, consumer_id: ConsumerId) -> Json:
    """Return a consumer and its keys, without the texts of keys."""
    return consumer_data(await admin.consumers.get(consumer_id))


@post("/consumers/{consumer_id:str}/rotate", opt=EDITOR, summary="Replace a consumer's key", status_code=201)
async def rotate_consumer(
    admin: Admin, request: JsonRequest, consumer_id: ConsumerId, data: JSONBody[RotateBody]
) -> Json:
    """Replace the key of a consumer. Only this response has the text of the new key."""
    return _consumer_key(
        await admin.consumers.rotate(consumer_id, actor_of(request), overlap_us=data.overlap * 1_000_000)
    )


@post("/consumers/{consumer_id:str}/revoke", opt=EDITOR, summary="Revoke a consumer's keys", status_code=204)
async def revoke_consumer(admin: Admin, request: JsonRequest, consumer_id: ConsumerId) -> None:
    """End all keys of a consumer immediately. Its tier and overrides stay."""
    await admin.consumers.revoke(consumer_id, actor_of(request))


@delete("/consumers/{consumer_id:str}", opt=EDITOR, summary="Delete a consumer", status_code=204)
async def delete_consumer(admin: Admin, request: JsonRequest, consumer_id: ConsumerId) -> None:
    """End all keys of a consumer immediately, and delete its tier and overrides."""
    await admin.delete_consumer(consumer_id, actor_of(request))


def _consumer_key(made: NewKey[ConsumerKey]) -> Json:
    key = key_data(made.key)
    about = {"tenant": key["tenant"], "expires_at": key["expires_at"], "key_id": key["id"]}
    return {"id": key["consumer"], **about, "key": made.text}


ROUTES = (
    *(list_keys, create_key, rotate_key, revoke_key),
    *(list_consumers, create_consumer, get_consumer, rotate_consumer, revoke_consumer, delete_consumer),
)
