# make demo | make test | make check: each sets up what it needs, from requirements.lock, into .venv
PYTHON ?= python3
UV     := $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)
READY  := .venv/.ready
BIN    := .venv/bin
export UV_PYTHON_DOWNLOADS := never
# Compiled once: else all processes of the first tests compile the same modules.
export UV_COMPILE_BYTECODE := 1
# The tests start hundreds of processes: each compiles all of its modules where none may keep what was compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo cupy test test-all check check-all lint types layers lock clean help

help:      ## this list
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY) cupy  ## measure this machine's GPUs, or a simulated fleet, and write demo/report.html
	@$(BIN)/whorl demo --out demo

# Real GPUs need CuPy for the CUDA of their driver, which no lock can know: put into .venv where a driver lists a GPU.
# CUDA 13 compiles no more for GPUs older than compute capability 7.5. Without a toolkit its libraries come as wheels.
# Where it fails, whorl demo measures a simulated fleet and says so.
cupy: $(READY)  ## install the CuPy that fits this machine's driver into .venv; nothing where no GPU is
	@timeout 60 nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || exit 0; \
	$(BIN)/python -c 'import sys, importlib.util as u; sys.exit(u.find_spec("cupy") is None)' && exit 0; \
	cuda=$$(timeout 60 nvidia-smi 2>/dev/null | sed -nE 's/.*CUDA[A-Z ]* Version: *([0-9]+).*/\1/p' | head -n 1); \
	if [ "$${cuda:-0}" -lt 12 ]; then \
		echo "a GPU is here, but its driver supports no CUDA 12 ($${cuda:-none} is its newest): update the driver" >&2; \
		exit 0; \
	fi; \
	extra=cuda12; \
	if [ "$$cuda" -ge 13 ] && timeout 60 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
		awk '{ n++; old += $$1 < 7.5 } END { exit !(n && !old) }'; then extra=cuda13; fi; \
	ctk=; \
	if [ -z "$$CUDA_PATH" ] && ! command -v nvcc >/dev/null 2>&1; then ctk="cupy-$${extra}x[ctk]"; fi; \
	echo "a GPU is here: installing CuPy for it into .venv (whorl[$$extra]$${ctk:+ and the CUDA libraries})" >&2; \
	$(UV) pip install --quiet --python .venv --constraint requirements.lock --editable ".[$$extra]" $$ctk || \
		echo "CuPy could not be installed, so that the GPU is not measured: see docs/campaigns.md" >&2

test: $(READY)  ## the tests, in minutes: what can be tried in thousands of ways is tried in some
	$(BIN)/python tests/shards.py

test-all: $(READY)  ## the tests, with many more cases
	$(BIN)/python tests/shards.py --long

check: lint types layers test  ## everything that must pass before a change lands

check-all: lint types layers test-all  ## the same with test-all: what CI runs

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
	@$(BIN)/python -m ensurepip --default-pip >/dev/null 2>&1 || true  # else pip install, which pages name, is another Python's
	@$(BIN)/python -m compileall -q -j 0 -x '/(\.|tests)' .
	@mkdir -p .venv/tree && ln -sfn ../.. .venv/tree/whorl
	@touch $@

.uv/bin/uv:
	@$(PYTHON) -m venv .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8

lock: | $(UV)  ## resolve the dependencies again into requirements.lock (versions and hashes, no addresses)
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--group dev pyproject.toml -o requirements.lock

clean:     ## remove what make made
	rm -rf .venv .uv demo tutorial build *.egg-info
