"""What to answer: headers for all, and a body for the refused."""

from __future__ import annotations

from headgate.engine import Engine
from headgate.policy.loading import load
from headgate.policy.request import Request
from headgate.web import problem
from headgate.web.headers import ResponseHeaders

engine = Engine(load("{version: 1, rules: [{id: orders-user, limit: 1, window: 1m}]}"))
request = Request({"user": "42"}, "/orders", "POST")
engine.check(request)

write = ResponseHeaders()  # make one and keep it

ruling = engine.check(request)
if ruling.decision is not None:
    names = [limit.rule_id for limit in ruling.limits]
    headers = write.of(ruling.decision, names)
    print(dict(headers)["Retry-After"], dict(headers)["RateLimit"])  # 60 "orders-user";r=0;t=60

    body = problem.quota_exceeded(ruling.decision, names)
    print(body.status, body.detail)  # 429 orders-user allows 1/minute. Retry in 60 s.
    print(problem.CONTENT_TYPE, body.encode()[:13])  # application/problem+json b'{"status":429'
