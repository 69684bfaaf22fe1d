# `make run` and `make test` do all their own set-up; everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check lint format bench bench-peers deploy-demo clean

run: $(STAMP)
	$(BIN)/gradsift compare --out runs/main

# Everything.
test: $(STAMP) lint
	scripts/ensure_chromium.sh
	$(BIN)/pytest -n auto --dist worksteal

# In about a minute, while you work: no slow tests, and a tenth of the examples of each property.
check: $(STAMP) lint
	$(BIN)/pytest -n auto -m 'not slow' --hypothesis-profile quick

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

deploy-demo: $(STAMP)
	$(BIN)/python -m scripts.deploy

# What docs/results/speed.md shows, under the names of its parts.
DEVICE ?= cpu
bench: $(STAMP)
	$(BIN)/python -m benchmarks.round --device $(DEVICE) --json .bench/round-$(DEVICE).json
	$(BIN)/python -m benchmarks.growth --device $(DEVICE) --out .bench/growth-$(DEVICE).json --plot .bench/growth-$(DEVICE).svg
ifeq ($(DEVICE),cuda)
	$(BIN)/python -m benchmarks.round --device $(DEVICE) --model paper-cnn --json .bench/round-$(DEVICE)-paper.json
	$(BIN)/python -m benchmarks.streamed --device $(DEVICE) --json .bench/streamed.json
	$(BIN)/python -m benchmarks.device_check --device $(DEVICE)
endif
	$(BIN)/python -m benchmarks.wire random

bench-peers: $(STAMP)
	$(BIN)/python -m benchmarks.peers.run --out .bench/peers.json

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"gradsift needs Python 3.11 or newer, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis
