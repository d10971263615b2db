#!/usr/bin/env bash
# Builds the images of all services: wheels on the host first (torch comes from where the host's pip finds it), then one small image per service.
#   PYTHON_IMAGE=python:3.11-slim   base image; `deploy/base-images.sh` makes one where no registry is reachable
#   CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt   certificates that pip inside the build needs to trust, if any
#   EDGE=1   the edge builder's image too: its tool-chains are large
#   VERSION=dev  PREFIX=octavo  PYTHON=.venv/bin/python (must be of the base image's minor version)
set -euo pipefail
cd "$(dirname "$0")/.."
VERSION=${VERSION:-dev} PREFIX=${PREFIX:-octavo} PYTHON=${PYTHON:-.venv/bin/python} PYTHON_IMAGE=${PYTHON_IMAGE:-python:3.11-slim}
CA_BUNDLE=${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}; [ -e "$CA_BUNDLE" ] || CA_BUNDLE=/dev/null
export DOCKER_BUILDKIT=1
WHEELS=build/wheels EDGE=${EDGE:-}

stamp=$(cat constraints.txt pyproject.toml <(echo "${EDGE:+edge}") | sha256sum)
if [ "$(cat $WHEELS/.stamp 2>/dev/null)" != "$stamp" ]; then
  echo "Fetching the wheels that the images need"
  rm -rf $WHEELS && mkdir -p $WHEELS
  "$PYTHON" -m pip --disable-pip-version-check download --quiet --only-binary :all: --constraint constraints.txt --dest $WHEELS pip "$(sed -n 's/^torch==/torch==/p' constraints.txt)"
  "$PYTHON" -m pip --disable-pip-version-check wheel --quiet --find-links $WHEELS --constraint constraints.txt --wheel-dir $WHEELS ".[gateway,scheduler,worker,ui,cli${EDGE:+,edge}]"
  echo "$stamp" >$WHEELS/.stamp; touch $WHEELS/.complete
fi
rm -f $WHEELS/octavo-*.whl
"$PYTHON" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir $WHEELS .

image() { # name dockerfile [arguments]
  local name=$1 file=$2; shift 2
  echo "Building $PREFIX-$name:$VERSION"
  docker build --quiet --secret id=ca,src="$CA_BUNDLE" --tag "$PREFIX-$name:$VERSION" --file "$file" "$@" . >/dev/null
}
image base deploy/base.Dockerfile --build-arg PYTHON_IMAGE="$PYTHON_IMAGE"
for part in services/gateway services/scheduler services/worker ${EDGE:+services/edge_builder} ui cli; do
  image "$(basename $part)" $part/Dockerfile --build-arg BASE="$PREFIX-base:$VERSION"
done
docker images --format '{{.Repository}}:{{.Tag}}  {{.Size}}' | grep -E "^$PREFIX-"
