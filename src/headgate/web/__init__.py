"""Identification of callers, and HTTP responses, for every API and framework.

Pure functions of bytes and values: no I/O, no clock (time is an argument, in microseconds), no framework.

=====================  ================================================================================
`web.address`          the client's address: peer and proxy headers in, canonical address and key out
`web.identity`         the caller: by API key, verified token and address
`web.apikey`           API keys, stored as digests
`web.jwt`, `web.jwk`   tokens (JWT) and the keys that verify them; needs the extra ``jwt``
`web.headers`          the response headers of a decision
`web.ietf`             the IETF's header fields, by version of the draft
`web.problem`          problem documents (RFC 9457)
=====================  ================================================================================

Nothing that a client merely claims chooses a key: a header counts only from a proxy that is configured as trusted, and
a credential only when it is verified.
"""

from headgate.web import problem
from headgate.web.address import AddressReader
from headgate.web.apikey import ApiKeys, Holder, digest
from headgate.web.headers import EXPOSED, ResponseHeaders, raw
from headgate.web.identity import Identifier, Identity
from headgate.web.jwk import VerificationKey
from headgate.web.jwt import Issuer, TokenVerifier, VerifiedClaims

__all__ = [
    "EXPOSED",
    "AddressReader",
    "ApiKeys",
    "Holder",
    "Identifier",
    "Identity",
    "Issuer",
    "ResponseHeaders",
    "TokenVerifier",
    "VerificationKey",
    "VerifiedClaims",
    "digest",
    "problem",
    "raw",
]
