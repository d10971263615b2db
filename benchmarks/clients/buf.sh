#!/bin/sh
# buf curl (package buf-bin) over gRPC: reflection, health, a streamed generation, a job, an error with its details.
. "$(dirname -- "$0")/common.sh"
environment buf buf-bin==1.75.0
BUF=$CLIENTS/buf/bin/buf
curl() { "$BUF" curl --protocol grpc --http2-prior-knowledge -H "authorization: Bearer $KEY" "$@"; }

"$BUF" --version
echo "-- services, by reflection"
curl --list-services "http://$GRPC"
echo "-- health"
curl -d '{}' "http://$GRPC/grpc.health.v1.Health/Check"
echo "-- models"
curl -d '{}' "http://$GRPC/octavo.v1.ModelService/ListModels"
echo "-- a stream"
curl -d "{\"generation\": {\"model\": \"$MODEL\", \"chat\": {\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of Japan?\"}]}, \"sampling\": {\"temperature\": 0, \"maxTokens\": 12}}}" \
    "http://$GRPC/octavo.v1.GenerationService/Generate"
echo "-- jobs"
curl -d '{"pageSize": 1}' "http://$GRPC/octavo.v1.JobService/ListJobs"
echo "-- an error"
curl -d '{"generation": {"prompt": ""}}' "http://$GRPC/octavo.v1.GenerationService/Generate" 2>&1 && exit 1
echo "-- no key"
"$BUF" curl --protocol grpc --http2-prior-knowledge -d '{}' "http://$GRPC/octavo.v1.ModelService/ListModels" 2>&1 && exit 1
exit 0
