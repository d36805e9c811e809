"""Tasks for a separate worker of Celery; HEADGATE_TEST_REDIS is the address of broker and limits."""

from __future__ import annotations

import os
import time

from celery import Celery

from headgate.integrations.celery import TaskLimits

REDIS = os.environ["HEADGATE_TEST_REDIS"]
app = Celery("tasks", broker=f"{REDIS}/1", backend=f"{REDIS}/1")
limits = TaskLimits(store=f"{REDIS}/0")


@app.task(name="send-far", shared=False)  # type: ignore[untyped-decorator]
@limits.limit("5/s capacity 1", key=lambda user: user)
def send(user: str) -> tuple[str, float]:
    """Say when it ran, by the clock of the machine that never goes back."""
    return user, time.monotonic()
