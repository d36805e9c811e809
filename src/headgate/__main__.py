"""``python -m headgate``: the command ``headgate``."""

from __future__ import annotations

import sys

from headgate.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
