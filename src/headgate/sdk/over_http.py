"""The transport over HTTP/1.1, with httpx, on persistent connections."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence

import httpx
import msgspec

from headgate.core.errors import InvalidKey, OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable, UsageError
from headgate.engine.ruling import Reset
from headgate.engine.ruling_json import RulingMessage, error_of
from headgate.policy.request import Request
from headgate.sdk.settings import ClientSettings, NodeAddress
from headgate.sdk.transport import BatchTooLarge, CallerRefused, Check, FetchedRules, Outcome, Problem, decode, validate

_BATCH, _REFUND, _RESET = "/api/v1/rate-limit/batch", "/api/v1/rate-limit/refund", "/api/v1/rate-limit/reset"
_RULES, _READY = "/api/v1/rate-limit/rules", "/readyz"
_LIMITS = httpx.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=240)
"""The service closes idle connections after 300 seconds, so the client always closes first."""
LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of a response, at most: as over gRPC, for the rules of a large service."""


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
    exact: RulingMessage | None = None
    error: Problem | None = None


class _Results(msgspec.Struct):
    results: tuple[_Result, ...]


_to_json = msgspec.json.Encoder().encode


def _encode(body: _CheckBody) -> bytes:
    try:
        return _to_json(body)
    except UnicodeEncodeError as error:
        raise InvalidKey(f"a request must be Unicode text: {error}") from None


def _body_of(request: Request, *, consume: bool = True, key: str = "", charge: str = "") -> _CheckBody:
    validate(request)
    about = request.method, request.attributes, request.cost, request.tier, request.address, request.rule_id
    return _CheckBody(dict(request.principal), request.endpoint, *about, consume, key, charge=charge, exact=True)


class HttpTransport:
    def __init__(self, endpoint: NodeAddress, settings: ClientSettings) -> None:
        identity = settings.identity
        tls = identity.context() if endpoint.is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncHTTPTransport(verify=tls, limits=_LIMITS, trust_env=False)
        self._endpoint = endpoint
        self._urls = {path: httpx.URL(f"{endpoint}{path}") for path in (_BATCH, _REFUND, _RESET, _RULES, _READY)}
        self._headers = httpx.Headers({"host": endpoint.place, "content-type": "application/json", **identity.headers})

    @staticmethod
    def encode(check: Check) -> bytes:
        body = _body_of(check.request, consume=check.consume, key=check.idempotency_key)
        if check.client_id:
            body.principal, body.endpoint, body.identifier = msgspec.UNSET, msgspec.UNSET, check.client_id
        return _encode(body)

    @staticmethod
    def with_key(check: bytes, key: str) -> bytes:
        return b'%b,"idempotency_key":"%b"}' % (check[:-1], key.encode())

    async def check(self, checks: Sequence[bytes], seconds: float) -> Sequence[Outcome]:
        body = await self._post(_BATCH, b'{"requests":[%b]}' % b",".join(checks), seconds)
        results = decode(self._endpoint, body, _Results).results
        if len(results) != len(checks):
            raise OutcomeUnknown(f"{self._endpoint} answered {len(results)} of {len(checks)} checks")
        return [self._outcome(each) for each in results]

    async def refund(self, request: Request, charge: str, seconds: float) -> RulingMessage:
        body = await self._post(_REFUND, _encode(_body_of(request, charge=charge)), seconds)
        outcome = self._outcome(decode(self._endpoint, body, _Result))
        if isinstance(outcome, UsageError):
            raise outcome
        return outcome

    async def reset(self, request: Request, seconds: float, *, is_whole: bool) -> Reset:
        check = _body_of(request)
        if is_whole:
            check.endpoint = msgspec.UNSET
        return decode(self._endpoint, await self._post(_RESET, _encode(check), seconds), Reset)

    async def rules(self, etag: str, seconds: float) -> FetchedRules | None:
        fresh = {"if-none-match": etag} if etag else {}
        response, content = await self._exchange("GET", _RULES, None, seconds, fresh)
        if response.status_code == 304:
            return None
        return msgspec.structs.replace(
            decode(self._endpoint, content, FetchedRules), etag=response.headers.get("etag", "")
        )

    async def ready(self, seconds: float) -> None:
        await self._exchange("GET", _READY, None, seconds)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, body: bytes, seconds: float) -> bytes:
        return (await self._exchange("POST", path, body, seconds))[1]

    async def _exchange(
        self, method: str, path: str, body: bytes | None, seconds: float, more: Mapping[str, str] | None = None
    ) -> tuple[httpx.Response, bytes]:
        """Return a response, which is closed, and its body."""
        headers = httpx.Headers({**self._headers, **more}) if more else self._headers
        times = {"connect": seconds / 2, "pool": seconds}  # the session bounds the whole call
        request = httpx.Request(method, self._urls[path], headers=headers, content=body, extensions={"timeout": times})
        try:
            response = await self._http.handle_async_request(request)
            content = await self._content(response)
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
        status = response.status_code
        if status != 200 and not (status == 304 and path == _RULES):
            raise self._problem(status, content)
        return response, content

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

    def _problem(self, status: int, content: bytes) -> StoreError | UsageError:
        try:
            problem = msgspec.json.decode(content, type=Problem)
        except (ValueError, RecursionError):
            problem = Problem(title=httpx.codes.get_reason_phrase(status))
        message = f"{self._endpoint} answered {status}: {problem}"
        match status:
            case 400:
                return error_of(problem.code, str(problem))
            case 401 | 403:
                return CallerRefused(message)
            case 413:
                return BatchTooLarge(message)
            case 429 | 503:
                return StoreBusy(message)
            case 404 | 405:
                return StoreUnavailable(f"{message}; is it a Headgate service?")
        return OutcomeUnknown(message)

    def _outcome(self, result: _Result) -> Outcome:
        if result.exact is not None:
            return result.exact
        if result.error is not None:
            return error_of(result.error.code, str(result.error))
        raise OutcomeUnknown(f"{self._endpoint} sent no `exact`: it is an older version, or not Headgate")


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
