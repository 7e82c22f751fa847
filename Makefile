# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What `make demo` needs, and that with the tools of the developers.
USE    := $(VENV)/.installed-use
DEV    := $(VENV)/.installed-dev
PIP    := $(BIN)/python -m pip install --disable-pip-version-check
# Of what pip says, only what is fetched and how large it is; errors come on stderr, all of them.
SAY    := awk '/^ *Downloading /{print "  " $$2 " " $$3 " " $$4; fflush()}'
INSTALL = $(PIP) --quiet --upgrade "pip>=25" && $(PIP) --progress-bar off -c constraints.txt -e

# bash, for a failed pip should not hide behind SAY.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test lint types contract stubs clean

help:
	@echo "make demo      install, then watch a small model speed a larger one up"
	@echo "make test      install, then run every test"
	@echo "make lint | types | contract    what CI checks besides the tests"
	@echo "make stubs     regenerate anydraft/v1 from protos/"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(USE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing torch, transformers and ONNX Runtime into $(VENV) (some minutes, once)"
	@$(INSTALL) ".[cli,draft,export,verify]" | $(SAY)
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing everything, with the developers' tools, into $(VENV) (some minutes, once)"
	@$(INSTALL) ".[dev]" | $(SAY)
	@touch $(USE) $@

demo: $(USE)
	@$(BIN)/anydraft demo

test: $(DEV)
	$(BIN)/python -m pytest

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

contract: $(DEV)
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	./protos/generate.sh --check

stubs:
	./protos/generate.sh

clean:
	rm -rf $(VENV) .venv-stubs .mypy_cache .ruff_cache .pytest_cache
