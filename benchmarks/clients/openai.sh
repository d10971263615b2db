#!/bin/sh
# The openai package in an environment of its own: models, chat, stream, completion, errors, a cancelled stream.
. "$(dirname -- "$0")/common.sh"
environment openai openai==3.57.0
OPENAI_BASE_URL=$HTTP/v1 OPENAI_API_KEY=$KEY MODEL=$MODEL \
    "$CLIENTS/openai/bin/python" "$ROOT/benchmarks/clients/openai_session.py"
