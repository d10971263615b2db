# Sourced by the scripts beside it: where the platform is, and an environment for each tool outside the clone.
#   OCTAVO    the octavo command                       [.venv/bin/octavo of the clone]
#   CLIENTS   folder for the tools' environments       [/tmp/octavo-clients]
#   MODEL     name of the served model                 [smollm2-135m]
set -eu
ROOT=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
OCTAVO=${OCTAVO:-$ROOT/.venv/bin/octavo}
CLIENTS=${CLIENTS:-/tmp/octavo-clients}
MODEL=${MODEL:-smollm2-135m}

first_address() { # grpc | http
    "$OCTAVO" status --json | python3 -c "import json, sys; print(json.load(sys.stdin)['$1'][0])"
}

GRPC=$(first_address grpc)
HTTP=http://$(first_address http)
KEY=$("$OCTAVO" keys show)

environment() { # name, packages...: makes the virtual environment once
    name=$1
    shift
    if [ ! -x "$CLIENTS/$name/bin/python" ]; then
        python3 -m venv "$CLIENTS/$name"
        "$CLIENTS/$name/bin/pip" install --quiet "$@"
    fi
}
