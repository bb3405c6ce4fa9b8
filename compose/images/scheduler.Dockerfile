# The scheduler: decides what runs. No torch, no tokenizer. Build context: the repository's root.
# No Docker engine was at hand: this file was never built; tests/compose runs what it declares as processes instead.
ARG PYTHON_VERSION=3.11.14

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
# A scheduler that reads a GPU's frames itself needs cuda-bindings: compose.yaml asks for it.
ARG EXTRA_PACKAGES=""
WORKDIR /build
RUN ["python", "-m", "venv", "/opt/flare"]
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared ./shared
COPY compose ./compose
COPY services/__init__.py ./services/__init__.py
COPY services/scheduler ./services/scheduler
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/flare/bin/python -m pip install --disable-pip-version-check -c constraints.txt ".[scheduler]" ${EXTRA_PACKAGES}

FROM python:${PYTHON_VERSION}-slim-bookworm
LABEL org.opencontainers.image.title="flare-scheduler" \
      org.opencontainers.image.description="Scheduler of the Flare inference server" \
      org.opencontainers.image.licenses="Apache-2.0"
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
    FLARE_METRICS_PORT=9101
USER 10001:10001
EXPOSE 9101
ENTRYPOINT ["flare", "scheduler"]
