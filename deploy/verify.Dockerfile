# syntax=docker/dockerfile:1
# The datacenter: anydraft-verify with a target on torch and transformers.
#
#   docker build -f deploy/verify.Dockerfile -t anydraft-verify:local .
#   docker build -f deploy/verify.Dockerfile -t anydraft-export:local --target export .
#
# PIP_EXTRA_INDEX_URL chooses the flavour of torch. Left empty, it is the package index's own wheel:
# with CUDA on x86-64 Linux, several gigabytes. PyTorch's install page has the index for CPUs, and
# one for each release of CUDA and ROCm:
#
#   docker build -f deploy/verify.Dockerfile --build-arg PIP_EXTRA_INDEX_URL=INDEX_FOR_CPUS .
#
#   docker run --init --read-only --tmpfs /tmp -p 127.0.0.1:50051:50051 \
#     -v anydraft-target:/var/cache/anydraft anydraft-verify:local --model=NAME

ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
# pip takes both from the environment. No credentials here: the image's history shows them.
ARG PIP_INDEX_URL=""
ARG PIP_EXTRA_INDEX_URL=""
ENV PATH=/opt/anydraft/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/anydraft
# The dependencies alone, around an empty anydraft: this layer outlives changes of the code.
COPY pyproject.toml constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    touch LICENSE README.md && pip install -c constraints.txt ".[verify]"
COPY LICENSE README.md ./
COPY anydraft anydraft
COPY draft_node draft_node
COPY verify_node verify_node
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --force-reinstall . && pip check

FROM build AS build-export
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c constraints.txt ".[export]" && pip check

FROM ${PYTHON_IMAGE} AS runtime
# Libraries ask for the user's name, so the number has one. A volume made from the image takes the
# folder's owner along.
RUN groupadd --gid 10001 anydraft \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --no-log-init anydraft \
    && install --directory --owner=10001 --group=10001 /var/cache/anydraft
ENV PATH=/opt/anydraft/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ANYDRAFT_CACHE=/var/cache/anydraft \
    HF_HOME=/var/cache/anydraft/hub \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
VOLUME ["/var/cache/anydraft"]
STOPSIGNAL SIGTERM

# Turns an assistant into an ONNX folder for the edge, then ends.
FROM runtime AS export
LABEL org.opencontainers.image.title="anydraft-export" \
      org.opencontainers.image.description="Exports an assistant to ONNX for anydraft-draft" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-export /opt/anydraft /opt/anydraft
HEALTHCHECK NONE
ENTRYPOINT ["anydraft", "models", "export"]
CMD ["smollm2-135m-instruct"]

# Last, and so what a build without --target makes.
FROM runtime AS verify
LABEL org.opencontainers.image.title="anydraft-verify" \
      org.opencontainers.image.description="Target node of anydraft: verifies drafts" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/anydraft /opt/anydraft
COPY deploy/healthcheck.py /usr/local/lib/anydraft/healthcheck.py
EXPOSE 50051
# Long to start: it listens once the target is downloaded, loaded and proven.
HEALTHCHECK --interval=30s --timeout=5s --retries=3 --start-period=60m --start-interval=5s \
    CMD ["python", "/usr/local/lib/anydraft/healthcheck.py", "127.0.0.1:50051"]
# Inside a container loopback is nobody's: what may reach the port is decided where it is published.
ENTRYPOINT ["anydraft-verify", "--listen=0.0.0.0:50051"]
CMD ["--model=qwen2.5-coder-0.5b-instruct"]
