"""Routes of consumers, the clients of the protected API, and their keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody, PathParameter

from headgate.admin.consumers import NewConsumerKey
from headgate.admin.routes.asking import EDITOR, VIEWER, Admin, Json, JsonRequest, Limit, Offset, actor_of
from headgate.admin.routes.operations import RotateBody
from headgate.admin.service import consumer_data, moment_or_none
from headgate.admin.tables import epoch_us

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
    return _key(
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
    return _key(await admin.consumers.rotate(consumer_id, actor_of(request), overlap_us=data.overlap * 1_000_000))


@post("/consumers/{consumer_id:str}/revoke", opt=EDITOR, summary="Revoke a consumer's keys", status_code=204)
async def revoke_consumer(admin: Admin, request: JsonRequest, consumer_id: ConsumerId) -> None:
    """End all keys of a consumer at once. Its tier and overrides stay."""
    await admin.consumers.revoke(consumer_id, actor_of(request))


@delete("/consumers/{consumer_id:str}", opt=EDITOR, summary="Delete a consumer", status_code=204)
async def delete_consumer(admin: Admin, request: JsonRequest, consumer_id: ConsumerId) -> None:
    """End all keys of a consumer at once, and delete its tier and overrides."""
    await admin.delete_consumer(consumer_id, actor_of(request))


def _key(made: NewConsumerKey) -> Json:
    key = made.key
    expires = moment_or_none(key.expires_at)
    return {"id": key.consumer, "tenant": key.tenant, "expires_at": expires, "key_id": key.id, "key": made.text}


ROUTES = (list_consumers, create_consumer, get_consumer, rotate_consumer, revoke_consumer, delete_consumer)
