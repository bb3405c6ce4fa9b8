# The holder of the PID and IPC namespaces: Python, and one module without dependencies. Build context: the root.
# No Docker engine was at hand: this file was never built; tests/compose runs what it declares as a process instead.
ARG PYTHON_VERSION=3.11.14

FROM python:${PYTHON_VERSION}-slim-bookworm
LABEL org.opencontainers.image.title="flare-holder" \
      org.opencontainers.image.description="Owner of the namespaces that scheduler and worker of the Flare server share" \
      org.opencontainers.image.licenses="Apache-2.0"
# A new volume takes owner and mode of the folder it is mounted over.
RUN install -d -o 10001 -g 10001 -m 0700 /run/flare
COPY compose/__init__.py compose/holder.py /opt/flare/compose/
ENV PATH=/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/flare
USER 10001:10001
ENTRYPOINT ["python", "-m", "compose.holder"]
