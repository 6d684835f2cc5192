"""A bare S3 client: SigV4 over one kept connection, nothing parsed that a byte search finds.

It is the harness's own eye, so it has to cost less than what it looks at: a listing page is searched for its
continuation token, not parsed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

TOKEN = re.compile(rb"<NextContinuationToken>([^<]+)</NextContinuationToken>")
LAST_MODIFIED = re.compile(rb"<LastModified>([^<]+)</LastModified>")
KEY = re.compile(rb"<Key>([^<]+)</Key>")


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and who may enter."""

    url: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"
    # Where a MinIO keeps its objects, for looking without asking.
    data: Path | None = None

    @property
    def address(self) -> str:
        return urlsplit(self.url).netloc


class S3Error(OSError):
    """An answer that is none of those expected."""


class Client:
    """One connection to one endpoint. Not for threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._connection = HTTPConnection(endpoint.address, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def _signed(self, method: str, path: str, query: str, body_sha256: str) -> dict[str, str]:
        """The headers of a request, Authorization among them. `query` is already sorted and encoded."""
        end = self.endpoint
        now = datetime.now(timezone.utc)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        headers = {"host": end.address, "x-amz-content-sha256": body_sha256, "x-amz-date": stamp}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{body_sha256}"
        scope = f"{day}/{end.region}/s3/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{end.secret_key}".encode()
        for piece in (day, end.region, "s3", "aws4_request"):
            key = hmac.digest(key, piece.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={end.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers

    def _request(self, method: str, path: str, query: str = "", body: bytes = b"") -> tuple[int, bytes]:
        headers = self._signed(method, path, query, hashlib.sha256(body).hexdigest())
        headers["content-length"] = str(len(body))
        self._connection.request(method, f"{path}?{query}" if query else path, body or None, headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def make_bucket(self, bucket: str) -> None:
        status, body = self._request("PUT", f"/{bucket}")
        if status != 200:
            raise S3Error(f"making bucket {bucket}: {status} {body[:200]!r}")

    def put(self, bucket: str, key: str, body: bytes) -> None:
        status, answer = self._request("PUT", f"/{bucket}/{quote(key)}", body=body)
        if status != 200:
            raise S3Error(f"PUT {key}: {status} {answer[:200]!r}")

    def delete(self, bucket: str, key: str) -> None:
        self._request("DELETE", f"/{bucket}/{quote(key)}")

    def page(self, bucket: str, prefix: str, *, token: str = "", after: str = "") -> bytes:
        """One page of ListObjectsV2 (1,000 keys), as the server wrote it."""
        query = {"continuation-token": token, "list-type": "2", "prefix": prefix, "start-after": after}
        wanted = urlencode({name: value for name, value in query.items() if value}, quote_via=quote, safe="-_.~")
        status, body = self._request("GET", f"/{bucket}", wanted)
        if status != 200:
            raise S3Error(f"listing {bucket}/{prefix}: {status} {body[:200]!r}")
        return body

    def pages(self, bucket: str, prefix: str) -> Iterator[bytes]:
        """The whole prefix, one page after the other: what a listing costs at least."""
        token = ""
        while True:
            body = self.page(bucket, prefix, token=token)
            yield body
            found = TOKEN.search(body[-4096:]) or TOKEN.search(body)
            if not found:
                return
            token = found[1].decode().replace("&amp;", "&").replace("&#43;", "+")

    def count(self, bucket: str, prefix: str) -> int:
        """Objects under the prefix, less those of the control directory."""
        control = f"<Key>{prefix}.chiefsync/".encode()
        return sum(body.count(b"<Key>") - body.count(control) for body in self.pages(bucket, prefix))

    def exists(self, bucket: str, key: str) -> bool:
        status, _ = self._request("HEAD", f"/{bucket}/{quote(key)}")
        if status not in (200, 404):
            raise S3Error(f"HEAD {key}: {status}")
        return status == 200

    def wait_for(self, bucket: str, key: str, timeout_s: float) -> float:
        """The `perf_counter` at which MinIO had committed the object; a HEAD then has to find it. `TimeoutError` else.

        Looks at MinIO's directory instead of asking by HEAD in a loop: a HEAD that arrives while the object is being
        written waits for its lock and tries again after some 50 ms, and the writer may have to wait for the HEAD, so
        that asking would change what it measures.
        """
        if not self.endpoint.data:
            raise ValueError("only a MinIO of our own can be looked at")
        # MinIO renames an object's metadata into place last of all; small objects lie inside it.
        committed = self.endpoint.data / bucket / key / "xl.meta"
        deadline = time.perf_counter() + timeout_s
        while not committed.exists():
            if time.perf_counter() > deadline:
                raise TimeoutError(key)
            time.sleep(0.0002)
        seen = time.perf_counter()
        if not self.exists(bucket, key):
            raise S3Error(f"{key} is on the server's disk, but a HEAD does not find it")
        return seen


def last_modified(pages: list[bytes], prefix: str) -> float:
    """The latest LastModified among the objects of a listing, control objects left out, as seconds since 1970."""
    latest = ""
    control = f"{prefix}.chiefsync/"
    for body in pages:
        # Keys and times stand in the same order, one of each an object.
        for key, stamp in zip(KEY.findall(body), LAST_MODIFIED.findall(body), strict=True):
            if not key.decode().startswith(control):
                latest = max(latest, stamp.decode())
    return datetime.fromisoformat(latest.replace("Z", "+00:00")).timestamp()
