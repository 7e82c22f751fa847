# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint types contract stubs clean

help:
	@echo "make demo      install, then watch a small model speed a larger one up"
	@echo "make test      install, then run every test"
	@echo "make lint | types | contract    what CI checks besides the tests"
	@echo "make stubs     regenerate anydraft/v1 from protos/"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/anydraft demo

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contract: $(STAMP)
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	./protos/generate.sh --check

stubs:
	./protos/generate.sh

clean:
	rm -rf $(VENV) .venv-stubs .mypy_cache .ruff_cache .pytest_cache
