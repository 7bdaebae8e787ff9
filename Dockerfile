# A daemon with emulated NPUs, and what programs need to use them. docs/packaging.md says how.
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:${PYTHON}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    for wheel in /wheels/*.whl; do pip install --no-cache-dir "${wheel}[tools]"; done
# one user in all containers: a program uses a daemon of its own user, or of root
RUN useradd --create-home --uid 1000 npu && install -d -o npu -g npu -m 755 /run/npu
USER 1000
WORKDIR /home/npu
ENV SOFTNPU_SOCKET=/run/npu/npu.sock
VOLUME /run/npu
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s CMD ["softnpu", "status"]
CMD ["softnpu", "daemon", "--foreground"]
