#!/usr/bin/env bash
# A trainer and the sidecar beside it, into a real MinIO on this machine; then the check, and the bucket's own listing.
# Needs cargo, python3, and MinIO (found or installed by tests/tools/get). Everything lies in a new temporary directory.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
minio=$(tests/tools/get minio)
python=$(tests/tools/get boto3)
cargo build --quiet --locked

export MINIO_ROOT_USER=example MINIO_ROOT_PASSWORD=example-secret
export AWS_ACCESS_KEY_ID=$MINIO_ROOT_USER AWS_SECRET_ACCESS_KEY=$MINIO_ROOT_PASSWORD AWS_REGION=us-east-1
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AWS_ENDPOINT_URL=http://127.0.0.1:$port

"$minio" server --quiet --address "127.0.0.1:$port" "$work/minio" >"$work/minio.log" 2>&1 &
server=$!
trap 'kill "$server"; wait "$server" 2>/dev/null || true' EXIT
"$python" - <<'PY'
import boto3
from botocore.config import Config

# Tries again until the server answers.
boto3.client("s3", config=Config(retries={"total_max_attempts": 20, "mode": "standard"})).create_bucket(Bucket="example")
PY

python3 examples/trainer.py "$work/output" &
target/debug/chiefsync watch "$work/output" s3://example/my-job/ --growing-interval 2s --restart-policy Never
target/debug/chiefsync verify --deep "$work/output" s3://example/my-job/
"$python" - <<'PY'
import boto3

for page in boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket="example"):
    for entry in page["Contents"]:
        print(f"{entry['Size']:>10}  {entry['Key']}")
PY
echo "The trainer's files, and MinIO's, are in $work."
