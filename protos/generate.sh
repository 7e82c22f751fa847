#!/usr/bin/env bash
# Regenerates anydraft/v1 from the protos; with --check only says whether the committed stubs match.
#
# The generator is pinned in an environment of its own: newer ones emit code that the older
# protobuf runtimes we support refuse to load, and this one cannot live beside the newest runtime.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-stubs
if [ ! -x $venv/bin/protoc-gen-mypy ]; then
  "${PYTHON:-python3}" -m venv $venv
  $venv/bin/pip install --quiet --disable-pip-version-check \
    grpcio-tools==1.81.1 protobuf==6.33.5 mypy-protobuf==3.6.0 setuptools==80.9.0
fi

out=.
if [ "${1:-}" = --check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
PATH="$PWD/$venv/bin:$PATH" $venv/bin/python -m grpc_tools.protoc -Iprotos \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  protos/anydraft/v1/*.proto

if [ "$out" != . ]; then
  if ! diff -r -x __pycache__ -x __init__.py "$out/anydraft/v1" anydraft/v1; then
    echo "anydraft/v1 does not match protos/: run 'make stubs' and commit the result" >&2
    exit 1
  fi
  echo "anydraft/v1 matches protos/"
fi
