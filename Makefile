# make run    start the service   make lint   ruff and mypy
# make test   run every check     make bench  measure, and render docs/benchmarks.md
# make quick  the tests that need almost no servers, in under a minute
# make thorough  the property tests with a hundred times as many random examples
# make coverage  run every test, and list the lines that none reaches
# make demo   a fleet with realistic traffic, and its console; KEEP=1 continues the last one
# make tour   the library, in the terminal
# make example  three services behind the gateway
# make docs   a site of all pages, with search: site/index.html
# make screenshots  of the console, for its page: docs/console.md
# make bare   run and test on a minimal Debian, made by debootstrap
# make image  build the container image without a daemon, and send a check to its service
# make manifest lock   renew deploy/kubernetes.yaml from the Helm chart, and the versions that the image installs
# make swagger   renew the files of Swagger UI with npm; VERSION=5.35.0 selects a version
# make release  build the packages, and check them as PyPI and a user would
PYTHON ?= python3
COMMA := ,
VENV := .venv
BIN := $(VENV)/bin
# The number of test files that run at once, in the order of tests/conftest.py: the longest first. Many of them wait for
# servers half of the time, so two cores can run four.
JOBS ?= 4
PYTEST = pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Tests of computations and decisions without servers, and of the path of a request through ours.
QUICK = tests/core tests/policy tests/engine tests/web tests/stores/test_*.py tests/server/wire/http1 \
  tests/server/wire/http2 tests/server/api/test_checks.py tests/server/api/test_answers.py tests/server/rls/test_requests.py
# Tests start Python often: keep compiled files, so that each start need not compile them again.
unexport PYTHONDONTWRITEBYTECODE
# More options of `headgate serve`, as in: make run OPTIONS='--http-port 9000'; or of an example.
OPTIONS ?=

# Programs that tests start, each with its package.
PROGRAMS := redis-server:redis-server redis-cli:redis-tools curl:curl nginx:nginx-light h2load:nghttp2-client \
  wrk:wrk openssl:openssl systemd-analyze:systemd initdb:postgresql promtool:prometheus chromium:chromium
PROGRAM_PACKAGES = $(shell PATH="$$PATH:/usr/sbin"; for each in /usr/lib/postgresql/*/bin; do PATH="$$PATH:$$each"; done; \
  for each in $(PROGRAMS); do command -v $${each%:*} >/dev/null || echo $$each | cut -d: -f2; done)
# A fresh Debian has Python without ensurepip.
VENV_PACKAGE = $(shell [ -e $(BIN)/python ] || $(PYTHON) -c 'import ensurepip' 2>/dev/null || \
  echo $(notdir $(PYTHON))-venv)

# Wait for other installations, and retry when the network fails.
PATIENTLY := -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5
# $(call packages,NAMES): root installs them without starting services; other users get the command to run as root.
define packages
[ -z "$(strip $1)" ] || { \
  get="apt-get install --no-install-recommends $(strip $1)"; \
  [ "$$(id -u)" = 0 ] || { echo "not installed: $(strip $1); as root: apt-get update && $$get" >&2; exit 1; }; \
  echo "installing $(strip $1) ..."; \
  output=$$({ apt-get update $(PATIENTLY) && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive $$get -y $(PATIENTLY); } 2>&1) || \
    { echo "$$output" >&2; exit 1; }; }
endef

# $(call watched,TEXT,COMMAND): prints TEXT, and the elapsed time every ten seconds.
define watched
@echo "$1 ..."; \
  { while sleep 10 >/dev/null 2>&1; do past=$$((past + 10)); echo "$1 ... $$past s"; done; } & \
  watch=$$!; $2; code=$$?; kill $$watch; exit $$code
endef

# Recreate an environment of another Python than $(PYTHON), or of a deleted one, unless $(PYTHON) is missing or too old.
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

# mypy uses one core, and so do the tests of the core.
test: servers $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint core
	@echo "all tests, $(JOBS) files at a time ..."
	@$(BIN)/$(PYTEST)

quick: $(VENV)/.dev
	@$(BIN)/$(PYTEST) --quiet $(QUICK)

thorough: servers $(VENV)/.dev
	@HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n $(JOBS) --dist worksteal -m hypothesis

# The tests of the core reach every branch without random examples. Coverage doubles their time. All tests are collected
# first, so that not each of $(JOBS) processes compiles them.
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

# Tests run real servers and clients; missing ones are installed from Debian's packages.
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
# All pages and the files that they link to, where their links expect them.
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

# The chart with its default values, without the fields that only Helm reads.
manifest: $(VENV)/.dev
	@{ sed -n '/^#/!q; p' deploy/kubernetes.yaml; \
	  $(BIN)/helm template headgate deploy/helm/headgate 2>/dev/null | sed '/^# Source/d; /helm.sh\/chart/d; /managed-by/d'; \
	} >$(VENV)/kubernetes.yaml && mv $(VENV)/kubernetes.yaml deploy/kubernetes.yaml

# Litestar requires polyfactory and Faker only for its test helpers: the image omits them.
LOCK := $(BIN)/uv --quiet pip compile --upgrade --universal --python-version 3.13 --generate-hashes --no-emit-index-url \
  --no-header --no-annotate --no-emit-package polyfactory --no-emit-package faker --output-file
lock: $(VENV)/.dev
	@$(BIN)/pip install --quiet uv  # it depends on nothing
	$(call watched,locking versions,$(LOCK) deploy/requirements.lock --extra admin --extra otel pyproject.toml)
	@echo hatchling | $(LOCK) deploy/build.lock -

# Files are served compressed. SHA256SUMS has the digests of the published files.
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

# Build both packages, and check them in a separate environment: these files are uploaded.
release: $(BIN)/python
	@rm -rf dist $(VENV)/release
	@$(PYTHON) -m venv $(VENV)/release
	$(call watched,installing the build tools,$(VENV)/release/bin/pip install --quiet build twine)
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

# Modules are compiled on first use; most are never used.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(call watched,installing headgate and the dependencies of its tests,$(BIN)/pip install --quiet --no-compile \
	  --editable '.[admin$(COMMA)sdk]' --group test --group bench --group docs)
	@touch $@ $(VENV)/.serve $(VENV)/.gateway
