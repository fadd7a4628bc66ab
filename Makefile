# Everything runs in .venv, which is made and installed from pyproject.toml on
# first use. Choose the interpreter with `make PYTHON=python3.12 …` and pass
# arguments on with `make test ARGS='-k codec'`.

PYTHON ?= python3
ARGS ?=

# Tests wait for much of their time, for processes to start and agents to be missed. Three workers
# keep two cores busy; each needs up to 3 GB. See tests/parallel.py. WORKERS=0 runs
# them one after the other in one process, as a debugger (ARGS=--pdb) needs it.
WORKERS ?= 3

VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PROTOS := proto/diskless/v1 $(wildcard proto/diskless/v1/*.proto)
GENERATED := diskless/rpc/v1/__init__.py

.DEFAULT_GOAL := help
.PHONY: help java setup tools demo test bench lint format proto screenshots soak chaos clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) $(GENERATED) ## Create .venv and install everything into it

tools: setup ## Fetch a browser and Prometheus for the tests of them, without root (Debian, Ubuntu)
	@$(RUN) .ci/tools.py $(VENV)/tools

demo: java setup ## Run a Spark stream on a cluster here, kill agents, and watch it go on
	@$(RUN) -m diskless.demo $(ARGS)

test: java lint ## Lint, type-check and run the tests, except the slow ones
	@$(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

bench: java setup ## Measure it beside local files and Redis, in a quarter of an hour
	@$(RUN) -m diskless.cli bench run $(ARGS)

# Before minutes are spent on anything else.
java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || \
	{ echo "make: java not found; install Java 17 or newer (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME"; exit 1; }

lint: setup ## Check style, format and the types of the pure modules
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check . || { echo "make format rewrites these files."; exit 1; }
	@$(RUN) -m mypy

format: setup ## Rewrite the code in the house format
	@$(RUN) -m ruff check --fix-only .
	@$(RUN) -m ruff format .

proto: $(INSTALLED) ## Regenerate diskless/rpc/v1 from the protos
	@$(RUN) proto/build.py

screenshots: setup ## Make the pictures of the page for the documentation
	@$(RUN) -m tests.browser.screenshots

soak chaos: setup
	@$(RUN) -m pytest -m $@ --timeout=0 $(ARGS); code=$$?; \
	if [ $$code -eq 5 ]; then echo "make $@: no test carries the mark '$@'."; fi; \
	exit $$code
soak: ## Run the tests that take minutes to hours
chaos: ## Run the tests that break a real cluster at random

clean: ## Remove .venv, generated code and caches
	rm -rf $(VENV) $(dir $(GENERATED)) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find diskless proto tests -name __pycache__ -type d -prune -exec rm -rf {} +

# pip installs only when the dependencies or the build hook change. An edited
# proto needs no more than protoc.
$(INSTALLED): pyproject.toml proto/build.py .ci/install.py
	@command -v $(PYTHON) >/dev/null || \
	{ echo "make: $(PYTHON) not found; install Python 3.11 or newer, or run make PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "make: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); run make PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo "make: $(PYTHON) has no venv module; install it (Debian, Ubuntu: python3-venv)"; exit 1; }
	@$(RUN) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(RUN) .ci/install.py $(RUN)
	@touch $@

$(GENERATED): $(PROTOS) proto/build.py | $(INSTALLED)
	@$(RUN) proto/build.py
