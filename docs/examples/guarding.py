"""Code that runs only when admitted."""

from __future__ import annotations

from headgate import Limiter, LimitExceeded

limiter = Limiter("1/minute")


@limiter.guard(lambda user: f"user:{user}")
def export(user: str) -> str:
    return f"the data of {user}"


print(export("ada"))  # the data of ada
try:
    export("ada")
except LimitExceeded as error:
    print(error.key, round(error.decision.retry_after))  # user:ada 60

with limiter.guard("nightly-job", timeout=2):
    print("running")  # running
