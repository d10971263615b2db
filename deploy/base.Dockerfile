# The stage under all service images: Python, a user, and what every service needs.
# Build with `deploy/build-images.sh`; a site without a registry makes PYTHON_IMAGE with `deploy/base-images.sh`.
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    OCTAVO_DATA_DIR=/data OCTAVO_HOST=0.0.0.0
RUN python3 -m venv /opt/octavo \
 && useradd --uid 10001 --user-group --home-dir /data --no-create-home --shell /usr/sbin/nologin octavo \
 && mkdir /data && chown octavo:octavo /data
# A private certificate authority, if the site has one, comes as the build secret `ca`. Wheels that are there are taken from wheels/.
COPY constraints.txt /opt/octavo/constraints.txt
COPY --chmod=755 deploy/pip-install.sh /usr/local/bin/pip-install
RUN --mount=type=secret,id=ca --mount=type=bind,source=build/wheels,target=/wheels pip-install 'octavo[common]'
WORKDIR /data
STOPSIGNAL SIGTERM
