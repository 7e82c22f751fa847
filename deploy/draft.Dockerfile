# syntax=docker/dockerfile:1
# The edge: anydraft-draft with an assistant on ONNX Runtime. No torch, no transformers.
#
#   docker build -f deploy/draft.Dockerfile -t anydraft-draft:local .
#
# This image runs ONNX exports and cannot make them. --model is one of
#   /assistant       a folder written by `anydraft models export NAME --output FOLDER` on a machine
#                    with the export extra, mounted: -v "$PWD/FOLDER:/assistant:ro"
#   org/repo         a Hub repository that holds an ONNX export; downloaded into the cache volume
#   a short name     where the cache volume holds its export, as compose.yaml's `export` leaves it
#
#   docker run --init --read-only --tmpfs /tmp -p 127.0.0.1:50061:50061 \
#     -v "$PWD/FOLDER:/assistant:ro" anydraft-draft:local --model=/assistant --verify=HOST:50051

ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
# A mirror of the package index; pip takes both from the environment. No credentials here: the
# image's history shows them.
ARG PIP_INDEX_URL=""
ARG PIP_EXTRA_INDEX_URL=""
ENV PATH=/opt/anydraft/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/anydraft
# The dependencies alone, around an empty anydraft: this layer outlives changes of the code.
COPY pyproject.toml constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    touch LICENSE README.md && pip install -c constraints.txt ".[draft]"
COPY LICENSE README.md ./
COPY anydraft anydraft
COPY draft_node draft_node
COPY verify_node verify_node
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --force-reinstall . && pip check
# The promise of the edge: a dependency that drags these in breaks the build.
RUN python -c "import importlib.util as u, sys; sys.exit(', '.join(n for n in ('torch', 'transformers') if u.find_spec(n)) or None)"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="anydraft-draft" \
      org.opencontainers.image.description="Edge node of anydraft: drafts with a small ONNX model" \
      org.opencontainers.image.licenses="Apache-2.0"
# Libraries ask for the user's name, so the number has one. A volume made from the image takes the
# folder's owner along.
RUN groupadd --gid 10001 anydraft \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --no-log-init anydraft \
    && install --directory --owner=10001 --group=10001 /var/cache/anydraft
COPY --from=build /opt/anydraft /opt/anydraft
COPY deploy/healthcheck.py /usr/local/lib/anydraft/healthcheck.py
ENV PATH=/opt/anydraft/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ANYDRAFT_CACHE=/var/cache/anydraft \
    HF_HOME=/var/cache/anydraft/hub \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
VOLUME ["/var/cache/anydraft"]
EXPOSE 50061
STOPSIGNAL SIGTERM
# Long to start, for it may download the assistant first.
HEALTHCHECK --interval=30s --timeout=5s --retries=3 --start-period=30m --start-interval=5s \
    CMD ["python", "/usr/local/lib/anydraft/healthcheck.py", "127.0.0.1:50061"]
# Inside a container loopback is nobody's: what may reach the port is decided where it is published.
ENTRYPOINT ["anydraft-draft", "--listen=0.0.0.0:50061"]
CMD ["--model=/assistant", "--verify=verify:50051"]
