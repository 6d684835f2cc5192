"""Reads a bucket with boto3: one JSON request a line on stdin, one JSON answer a line on stdout."""

import base64
import hashlib
import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

s3 = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))


def list_objects(bucket, prefix):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [
        {"key": entry["Key"], "modified": entry["LastModified"].timestamp()}
        for page in pages
        for entry in page.get("Contents", [])
    ]


def get(bucket, key):
    """The SHA-256 of an object, and of its content if it is small the content itself."""
    body = s3.get_object(Bucket=bucket, Key=key)["Body"]
    sha256, size, content = hashlib.sha256(), 0, b""
    for piece in body.iter_chunks(1 << 20):
        sha256.update(piece)
        size += len(piece)
        if size <= 1 << 20:
            content += piece
    small = base64.b64encode(content).decode() if size <= 1 << 20 else None
    return {"sha256": sha256.hexdigest(), "size": size, "content": small}


def head(bucket, key):
    answer = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    return {
        "size": answer["ContentLength"],
        "checksum": answer.get("ChecksumSHA256"),
        "checksum_type": answer.get("ChecksumType"),
    }


def uploads(bucket, prefix):
    answer = s3.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
    return [upload["Key"] for upload in answer.get("Uploads", [])]


operations = {"list": list_objects, "get": get, "head": head, "uploads": uploads}

for line in sys.stdin:
    request = json.loads(line)
    operation = operations[request.pop("operation")]
    try:
        answer = {"ok": operation(**request)}
    except (BotoCoreError, ClientError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
