#!/bin/sh
# Installs into the image's environment: from /wheels alone when they hold everything, else from the index too.
set -eu
[ -s /run/secrets/ca ] && export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca
grep -v '^torch==' /opt/octavo/constraints.txt >/tmp/constraints.txt
if [ -e /wheels/.complete ]; then set -- --no-index "$@"; fi
exec pip install --quiet --find-links /wheels --constraint /tmp/constraints.txt "$@"
