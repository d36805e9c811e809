"""The transport over HTTP/1.1, with httpx, on persistent connections."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from headgate.core.errors import (
    InvalidCost,
    InvalidKey,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from headgate.engine.ruling import Reset
from headgate.engine.written import WrittenRuling, error_of
from headgate.policy.request import Request
from headgate.sdk.settings import Credentials, NodeAddress
from headgate.sdk.transport import BatchTooLarge, CallerRefused, Check, FetchedRules, Outcome, Problem, checked

_BATCH, _REFUND, _RESET = "/api/v1/rate-limit/batch", "/api/v1/rate-limit/refund", "/api/v1/rate-limit/reset"
_RULES, _READY = "/api/v1/rate-limit/rules", "/readyz"
_LIMITS = httpx.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=240)
"""The service closes idle connections after 300 seconds, so the client always closes first."""
LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of a response, at most: as over gRPC, for the rules of a large service."""
T = TypeVar("T")


class _CheckBody(msgspec.Struct, omit_defaults=True):
    """The JSON body of a check; see docs/api.md."""

    principal: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    method: str = ""
    attributes: Mapping[str, str] = {}
    cost: int = 1
    tier: str = ""
    address: str = ""
    rule_id: str = ""
    consume: bool = True
    idempotency_key: str = ""
    identifier: str = ""
    charge: str = ""
    exact: bool = False


class _Result(msgspec.Struct):
    exact: WrittenRuling | None = None
    error: Problem | None = None


class _Results(msgspec.Struct):
    results: tuple[_Result, ...]


_to_json = msgspec.json.Encoder().encode


def encode(check: Check) -> bytes:
    """Encode a check. Raises InvalidRequest, InvalidCost."""
    request = checked(check.request)
    written = _question(request, check.consume, check.idempotency_key)
    if check.client_id:
        written.principal, written.identifier = msgspec.UNSET, check.client_id
        written.endpoint = msgspec.UNSET
    return _written(written)


def with_key(check: bytes, key: str) -> bytes:
    """Add an idempotency key to an encoded check."""
    return b'%b,"idempotency_key":"%b"}' % (check[:-1], key.encode())


def _written(check: _CheckBody) -> bytes:
    try:
        return _to_json(check)
    except UnicodeEncodeError as error:
        raise InvalidKey(f"a request must be Unicode text: {error}") from None


def _question(request: Request, consume: bool = True, key: str = "", charge: str = "") -> _CheckBody:  # noqa: FBT001, FBT002
    if type(request.cost) is not int:
        raise InvalidCost(f"cost must be a whole number, not {request.cost!r:.100}")
    about = request.method, request.attributes, request.cost, request.tier, request.address, request.rule_id
    return _CheckBody(dict(request.principal), request.endpoint, *about, consume, key, charge=charge, exact=True)


class _Answer(NamedTuple):
    status: int
    headers: httpx.Headers
    content: bytes


class HttpTransport:
    """Calls a node over HTTP."""

    def __init__(self, endpoint: NodeAddress, identity: Credentials) -> None:
        tls = identity.context() if endpoint.is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncHTTPTransport(verify=tls, limits=_LIMITS, trust_env=False)
        self._endpoint = endpoint
        self._urls = {path: httpx.URL(f"{endpoint}{path}") for path in (_BATCH, _REFUND, _RESET, _RULES, _READY)}
        self._headers = httpx.Headers({"host": endpoint.place, "content-type": "application/json", **identity.headers})

    async def check(self, checks: Sequence[bytes], seconds: float) -> Sequence[Outcome]:
        body = await self._post(_BATCH, b'{"requests":[%b]}' % b",".join(checks), seconds)
        results = self._read(body, _Results).results
        if len(results) != len(checks):
            raise OutcomeUnknown(f"{self._endpoint} answers {len(results)} of {len(checks)} checks")
        return [self._outcome(each) for each in results]

    async def refund(self, request: Request, charge: str, seconds: float) -> WrittenRuling:
        body = await self._post(_REFUND, _written(_question(checked(request), charge=charge)), seconds)
        outcome = self._outcome(self._read(body, _Result))
        if isinstance(outcome, UsageError):
            raise outcome
        return outcome

    async def reset(self, request: Request, seconds: float, *, is_whole: bool) -> Reset:
        check = _question(checked(request))
        if is_whole:
            check.endpoint = msgspec.UNSET
        return self._read(await self._post(_RESET, _written(check), seconds), Reset)

    async def rules(self, etag: str, seconds: float) -> FetchedRules | None:
        response = await self._exchange("GET", _RULES, None, seconds, {"if-none-match": etag} if etag else {})
        if response.status == 304:
            return None
        found = self._read(response.content, FetchedRules)
        return msgspec.structs.replace(found, etag=response.headers.get("etag", ""))

    async def ready(self, seconds: float) -> None:
        await self._exchange("GET", _READY, None, seconds)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, body: bytes, seconds: float) -> bytes:
        return (await self._exchange("POST", path, body, seconds)).content

    async def _exchange(
        self, method: str, path: str, body: bytes | None, seconds: float, more: Mapping[str, str] | None = None
    ) -> _Answer:
        headers = httpx.Headers({**self._headers, **more}) if more else self._headers
        times = {"connect": seconds / 2, "pool": seconds}  # the session bounds the whole call
        request = httpx.Request(method, self._urls[path], headers=headers, content=body, extensions={"timeout": times})
        try:
            response = await self._http.handle_async_request(request)
            answer = _Answer(response.status_code, response.headers, await self._content(response))
        except httpx.PoolTimeout:
            raise StoreBusy(f"all connections to {self._endpoint} are in use") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            refused = _tls_error(error)
            why = f"cannot be reached: {error or type(error).__name__}"
            if isinstance(refused, ssl.SSLCertVerificationError):
                why = f"has a certificate that is not trusted: {refused.verify_message}"
            elif refused is not None:
                why = f"failed the TLS handshake: {refused.reason or refused}"
            raise StoreUnavailable(f"{self._endpoint} {why}") from refused
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"{self._endpoint} did not answer: {error or type(error).__name__}") from None
        if answer.status != 200 and not (answer.status == 304 and path == _RULES):
            raise self._problem(answer)
        return answer

    async def _content(self, response: httpx.Response) -> bytes:
        """Read the body of a response, up to a limit."""
        content = bytearray()
        try:
            if "content-encoding" in response.headers:  # may expand beyond any limit
                raise OutcomeUnknown(
                    f"{self._endpoint} sent a compressed response: it is not Headgate, or a proxy compresses"
                )
            async for some in response.aiter_raw():
                content += some
                if len(content) > LARGEST_ANSWER:
                    raise OutcomeUnknown(f"{self._endpoint} sent more than {LARGEST_ANSWER} bytes")
        finally:
            await response.aclose()
        return bytes(content)

    def _problem(self, response: _Answer) -> StoreError | UsageError:
        try:
            problem = msgspec.json.decode(response.content, type=Problem)
        except (ValueError, RecursionError):
            problem = Problem(title=httpx.codes.get_reason_phrase(response.status))
        status = response.status
        said = f"{self._endpoint} answers {status}: {problem}"
        match status:
            case 400:
                return error_of(problem.code, str(problem))
            case 401 | 403:
                return CallerRefused(said)
            case 413:
                return BatchTooLarge(said)
            case 429 | 503:
                return StoreBusy(said)
            case 404 | 405:
                return StoreUnavailable(f"{said}; is it Headgate?")
        return OutcomeUnknown(said)

    def _outcome(self, result: _Result) -> Outcome:
        if result.exact is not None:
            return result.exact
        if result.error is not None:
            return error_of(result.error.code, str(result.error))
        raise OutcomeUnknown(f"{self._endpoint} answers without `exact`: an older version, or not Headgate")

    def _read(self, body: bytes, form: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=form)
        except (ValueError, RecursionError) as error:
            raise OutcomeUnknown(f"{self._endpoint} answers, but not like Headgate: {error}") from None


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error in a chain of causes."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
