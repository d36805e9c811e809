#!/usr/bin/env bash
# Each package given, installed in an environment of its own, as a user would install it: its library decides, its command
# serves, and no file of it is missing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in "$@"; do
  package=$(realpath "$package")
  echo "checking $(basename "$package") ..."
  "${PYTHON:-python3}" -m venv "$work/plain"
  "$work/plain/bin/pip" install --quiet "$package"
  (cd "$work" && plain/bin/python -c '
from headgate import Limiter
limiter = Limiter("2/minute")
assert [limiter.check("ada").allowed for _ in range(3)] == [True, True, False]')
  "$work/plain/bin/pip" install --quiet "$package[admin]"
  (cd "$work" && plain/bin/python -c '
from headgate.reference.pages import reference_files
assert len(reference_files(b"{}")) == 6')
  (cd "$work" && plain/bin/headgate --version && plain/bin/headgate serve --check --http-port 0 --grpc-port 0)
  rm -rf "$work"/*
done
