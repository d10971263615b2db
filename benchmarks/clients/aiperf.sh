#!/bin/sh
# aiperf in an environment of its own: 20 streamed chats, 4 at once. Prints its table; its files go to $OUT.
. "$(dirname -- "$0")/common.sh"
OUT=${OUT:-$CLIENTS/aiperf-result}
environment aiperf aiperf==0.13.0
"$OCTAVO" models export-tokenizer "$CLIENTS/tokenizer" --model "$MODEL"
# HF_HUB_OFFLINE must not be set: with it a local tokenizer directory is taken for the name of a repository.
unset HF_HUB_OFFLINE
"$CLIENTS/aiperf/bin/aiperf" profile --model "$MODEL" --url "$HTTP" --endpoint-type chat --streaming \
    --api-key "$KEY" --tokenizer "$CLIENTS/tokenizer" \
    --concurrency "${CONCURRENCY:-4}" --request-count "${REQUESTS:-20}" \
    --synthetic-input-tokens-mean 32 --output-tokens-mean 16 --extra-inputs ignore_eos:true \
    --use-server-token-count \
    --artifact-dir "$OUT" --ui none
