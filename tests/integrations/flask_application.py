"""The same as `applications`, by Flask: apart, since workers take long to import a framework."""

from __future__ import annotations

import json
import os
from typing import Any

from flask import Flask

from headgate.integrations.flask import RateLimits

SETTINGS: Any = json.loads(os.environ["HEADGATE_SITE"])

flask_app = Flask(__name__)
RateLimits(flask_app, key=lambda request: request.headers["x-key"], **SETTINGS)
flask_app.get("/")(lambda: str(os.getpid()))
