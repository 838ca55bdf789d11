# make demo | make test | make check: each sets up what it needs, from requirements.lock, into .venv
PYTHON ?= python3
UV     := $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)
READY  := .venv/.ready
BIN    := .venv/bin
export UV_PYTHON_DOWNLOADS := never

.PHONY: demo test check lint types layers lock clean help

help:      ## this list
	@grep -hE '^[a-z]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY)  ## measure this machine's GPUs, or a simulated fleet, and write demo/report.html
	@$(BIN)/whorl demo --out demo

test: $(READY)  ## the tests
	$(BIN)/python -m pytest

check: lint types layers test  ## everything that must pass before a change lands

lint: $(READY)  ## ruff: style and likely mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict
	$(BIN)/mypy

layers: $(READY)  ## import-linter: each room imports only from below
	cd .venv/tree && ../bin/lint-imports --config ../../pyproject.toml --no-cache

$(READY): requirements.lock pyproject.toml | $(UV)
	@echo "setting up .venv" >&2
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	@$(UV) pip sync --quiet --require-hashes --python .venv requirements.lock
	@$(UV) pip install --quiet --no-deps --python .venv --editable .
	@mkdir -p .venv/tree && ln -sfn ../.. .venv/tree/whorl
	@touch $@

.uv/bin/uv:
	@$(PYTHON) -m venv .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8

lock: | $(UV)  ## resolve the dependencies again into requirements.lock (versions and hashes, no addresses)
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--group dev pyproject.toml -o requirements.lock

clean:     ## remove what make made
	rm -rf .venv .uv demo build *.egg-info
