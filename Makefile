# make run    start the service   make lint   ruff and mypy
# make test   run every check     make bench  measure, and render docs/benchmarks.md
# make quick  the tests that need next to no server, in under a minute
# make thorough  the tests of laws again, with a hundred times as many examples, at random
# make coverage  run every test, and say which lines none reaches
# make demo   a running fleet with believable traffic, and its console: KEEP=1 goes on with the last one
# make tour   the library, in the terminal
# make example  three services behind the gateway, and what to try
# make docs   a site of all pages, with search: site/index.html
# make screenshots  of the console, for its page: docs/console.md
# make bare   run and test on a minimal Debian, made by debootstrap
# make image  build the container image without a daemon, and ask the service in it
# make manifest lock   renew deploy/kubernetes.yaml from the Helm chart, and the versions that the image installs
# make swagger   renew the files of Swagger UI, which needs npm; VERSION=5.35.0 takes that one
# make release  build the packages, and check them as PyPI and a user would
PYTHON ?= python3
COMMA := ,
VENV := .venv
BIN := $(VENV)/bin
# How many files of tests run at the same time, in the order of tests/conftest.py: those that take longest first.
# Many of them wait for servers half of the time, so that two cores have work for four.
JOBS ?= 4
PYTEST = pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What is computed and decided, without servers, and what a request meets on its way through ours.
QUICK = tests/core tests/policy tests/engine tests/web tests/stores/test_*.py tests/server/wire/http1 \
  tests/server/wire/http2 tests/server/api/test_checks.py tests/server/api/test_answers.py tests/server/rls/test_codec.py
# Tests start Python often, and each start would compile what the one before has compiled.
unexport PYTHONDONTWRITEBYTECODE
# More options of `headgate serve`, as in: make run OPTIONS='--http-port 9000'; or of an example.
OPTIONS ?=

# What tests start, each with its package.
PROGRAMS := redis-server:redis-server redis-cli:redis-tools curl:curl nginx:nginx-light h2load:nghttp2-client \
  wrk:wrk openssl:openssl systemd-analyze:systemd initdb:postgresql promtool:prometheus chromium:chromium
PROGRAM_PACKAGES = $(shell PATH="$$PATH:/usr/sbin"; for each in /usr/lib/postgresql/*/bin; do PATH="$$PATH:$$each"; done; \
  for each in $(PROGRAMS); do command -v $${each%:*} >/dev/null || echo $$each | cut -d: -f2; done)
# A fresh Debian has Python without what makes environments.
VENV_PACKAGE = $(shell [ -e $(BIN)/python ] || $(PYTHON) -c 'import ensurepip' 2>/dev/null || \
  echo $(notdir $(PYTHON))-venv)

# Others may install something at the moment, and a network may fail for a moment.
PATIENTLY := -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5
# $(call packages,NAMES): root installs them, services not started; anybody else is told what to ask for.
define packages
[ -z "$(strip $1)" ] || { \
  get="apt-get install --no-install-recommends $(strip $1)"; \
  [ "$$(id -u)" = 0 ] || { echo "not installed: $(strip $1); as root: apt-get update && $$get" >&2; exit 1; }; \
  echo "installing $(strip $1) ..."; \
  said=$$({ apt-get update $(PATIENTLY) && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive $$get -y $(PATIENTLY); } 2>&1) || \
    { echo "$$said" >&2; exit 1; }; }
endef

# $(call watched,TEXT,COMMAND): says what takes long, and every ten seconds that it goes on.
define watched
@echo "$1 ..."; \
  { while sleep 10 >/dev/null 2>&1; do past=$$((past + 10)); echo "$1 ... $$past s"; done; } & \
  watch=$$!; $2; code=$$?; kill $$watch; exit $$code
endef

# An environment of another Python than the one that is asked for, or of one that is gone, is made anew; but not where the
# one that is asked for is not there, or too old.
IDENTITY := import sys; sys.version_info >= (3, 11) and print(sys.version_info[:3], sys.base_prefix)
TOO_OLD := Python 3.11 or later is needed; another one: make PYTHON=python3.13
ifneq ($(wildcard $(VENV)),)
  ifeq ($(shell $(BIN)/python -c 'import pip; $(IDENTITY)' 2>/dev/null),)
    $(shell rm -rf $(VENV))
  else ifneq ($(origin PYTHON),file)
    ASKED := $(shell $(PYTHON) -c '$(IDENTITY)' 2>/dev/null)
    ifeq ($(ASKED),)
      $(error $(TOO_OLD))
    else ifneq ($(shell $(BIN)/python -c '$(IDENTITY)'),$(ASKED))
      $(shell rm -rf $(VENV))
    endif
  endif
endif

.PHONY: run demo tour example test quick thorough core coverage servers lint format bench plots docs screenshots bare image manifest lock swagger release clean
.DEFAULT_GOAL := test

run: $(VENV)/.serve
	@exec $(BIN)/headgate serve $(OPTIONS)

demo: $(VENV)/.serve
	@exec $(BIN)/python -m examples.demo $(if $(KEEP),--keep) $(OPTIONS)

tour: $(VENV)/.serve
	@$(BIN)/python docs/examples/tour.py

example: $(VENV)/.gateway
	@exec $(BIN)/python examples/microservices $(OPTIONS)

# mypy has work for one core, and so have the tests of the core.
test: servers $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint core
	@echo "all tests, $(JOBS) files at a time ..."
	@$(BIN)/$(PYTEST)

quick: $(VENV)/.dev
	@$(BIN)/$(PYTEST) --quiet $(QUICK)

thorough: servers $(VENV)/.dev
	@HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n $(JOBS) --dist worksteal -m hypothesis

# The tests of the core reach every branch of it, without random examples, on which that would depend. To count lines
# doubles their time. All tests are collected first: what that compiles is not compiled by each of $(JOBS) processes.
core: $(VENV)/.dev
	@echo "collecting the tests ..."
	@$(BIN)/pytest --collect-only --quiet >$(VENV)/collected || { cat $(VENV)/collected; exit 1; }
	@echo "tests of the core, which reach every branch of it ..."
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest --quiet -m 'not hypothesis' tests/core
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --fail-under=100

coverage: servers $(VENV)/.dev
	@$(BIN)/coverage erase
	@$(BIN)/coverage run --source=src/headgate -m $(PYTEST)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered

# Tests run real servers and clients; missing ones come from Debian's packages.
servers:
	@$(call packages,$(VENV_PACKAGE) $(PROGRAM_PACKAGES))

lint: $(VENV)/.dev
	@echo "ruff ..."
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	$(call watched,mypy,$(BIN)/mypy)

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

bench: servers $(VENV)/.dev
	@$(BIN)/python -m benchmarks

plots: $(VENV)/.dev
	@$(BIN)/python docs/plots.py
	@$(BIN)/python docs/diagrams.py

SITE ?= site
# Pages and what they link to, in the places that their links name.
docs: $(VENV)/.dev
	@rm -rf $(VENV)/site && mkdir $(VENV)/site
	@ln -s $(foreach each,README.md CHANGELOG.md CONTRIBUTING.md LICENSE docs examples deploy src,$(CURDIR)/$(each)) $(VENV)/site
	$(call watched,building the site,NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict \
	  --config-file docs/mkdocs.yml --site-dir $(abspath $(SITE)))
	@echo "to read it: $(PYTHON) -m http.server --directory $(SITE) --bind 127.0.0.1 8000"

screenshots: servers $(VENV)/.dev
	@$(BIN)/python docs/screenshots.py

bare:
	$(call watched,checking on a minimal Debian,tests/bare.sh)

image:
	$(call watched,making the image,tests/image.sh)

# The chart with its own values, less what only Helm reads.
manifest: $(VENV)/.dev
	@{ sed -n '/^#/!q; p' deploy/kubernetes.yaml; \
	  $(BIN)/helm template headgate deploy/helm/headgate 2>/dev/null | sed '/^# Source/d; /helm.sh\/chart/d; /managed-by/d'; \
	} >$(VENV)/kubernetes.yaml && mv $(VENV)/kubernetes.yaml deploy/kubernetes.yaml

# Litestar names polyfactory, and with it Faker, which its own test helpers use alone: the image goes without.
LOCK := $(BIN)/uv --quiet pip compile --upgrade --universal --python-version 3.13 --generate-hashes --no-emit-index-url \
  --no-header --no-annotate --no-emit-package polyfactory --no-emit-package faker --output-file
lock: $(VENV)/.dev
	@$(BIN)/pip install --quiet uv  # it depends on nothing
	$(call watched,locking versions,$(LOCK) deploy/requirements.lock --extra admin --extra otel pyproject.toml)
	@echo hatchling | $(LOCK) deploy/build.lock -

# Compressed as they are served. SHA256SUMS is of the files as their authors publish them.
SWAGGER_UI := src/headgate/reference/swagger-ui
VERSION ?= latest
swagger:
	@rm -rf $(VENV)/swagger-ui && mkdir -p $(VENV)/swagger-ui
	@cd $(VENV)/swagger-ui && tar -xzf "$$(npm pack --silent swagger-ui-dist@$(VERSION))"
	@rm -f $(SWAGGER_UI)/*
	@cd $(VENV)/swagger-ui/package && cp LICENSE NOTICE swagger-ui-bundle.js.LICENSE.txt ../../../$(SWAGGER_UI) && \
	  { sed -n 's/.*"version": "\(.*\)".*/# swagger-ui-dist \1/p' package.json; sha256sum swagger-ui-bundle.js swagger-ui.css; \
	  } >../../../$(SWAGGER_UI)/SHA256SUMS && gzip -9n swagger-ui-bundle.js swagger-ui.css && \
	  mv swagger-ui-bundle.js.gz swagger-ui.css.gz ../../../$(SWAGGER_UI)
	@head -n 1 $(SWAGGER_UI)/SHA256SUMS

# What is uploaded is what was checked: both packages, installed in an environment of their own.
release: $(BIN)/python
	@rm -rf dist $(VENV)/release
	@$(PYTHON) -m venv $(VENV)/release
	$(call watched,installing what builds packages,$(VENV)/release/bin/pip install --quiet build twine)
	$(call watched,building dist/,$(VENV)/release/bin/python -m build >$(VENV)/release/log || { cat $(VENV)/release/log; false; })
	@$(VENV)/release/bin/twine check --strict dist/*
	$(call watched,checking the packages,tests/release.sh dist/*.tar.gz dist/*.whl)

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(TOO_OLD)" >&2; exit 1; }
	@$(call packages,$(VENV_PACKAGE))
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.serve: pyproject.toml | $(BIN)/python
	$(call watched,installing headgate,$(BIN)/pip install --quiet --editable '.[admin]')
	@touch $@

$(VENV)/.gateway: pyproject.toml | $(BIN)/python
	$(call watched,installing headgate and its gateway,$(BIN)/pip install --quiet --editable '.[gateway]')
	@touch $@

# What is used is compiled when it is first used: most never is.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(call watched,installing headgate and what its tests need,$(BIN)/pip install --quiet --no-compile \
	  --editable '.[admin$(COMMA)sdk]' --group test --group bench --group docs)
	@touch $@ $(VENV)/.serve $(VENV)/.gateway
