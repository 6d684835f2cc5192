"""The servers under the measurements: MinIO, and the project's own that drops the bytes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measuring import Command, Failed, running, tail
from s3 import Client, Endpoint

ACCESS_KEY, SECRET_KEY = "benchbench", "benchbench-secret"
BUCKET = "bench"
GET_TOOL = Path(__file__).parent.parent / "tests" / "tools" / "get"


class Servers:
    """Starts fresh servers: every run meets an empty one, warmed up by one object."""

    def __init__(self, work: Path, dev_s3: Path | None) -> None:
        self.work = work
        self.dev_s3 = dev_s3
        self._minio = ""

    def minio_path(self) -> str:
        if not self._minio:
            found = subprocess.run([GET_TOOL, "minio"], stdout=subprocess.PIPE, text=True)
            if found.returncode != 0:
                raise Failed("no MinIO: see the hint above")
            self._minio = found.stdout.strip()
        return self._minio

    @contextmanager
    def minio(self) -> Iterator[Endpoint]:
        data = Path(tempfile.mkdtemp(prefix="minio-", dir=self.work))
        try:
            port, console = free_port(), free_port()
            argv = [self.minio_path(), "server", "--quiet", "--address", f"127.0.0.1:{port}"]
            argv += ["--console-address", f"127.0.0.1:{console}", str(data / "objects")]
            env = {
                "PATH": os.environ["PATH"],
                "HOME": str(data),
                "MINIO_ROOT_USER": ACCESS_KEY,
                "MINIO_ROOT_PASSWORD": SECRET_KEY,
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
            }
            log = data / "log"
            with running(Command(argv, env), log) as process:
                endpoint = Endpoint(f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET_KEY, data=data / "objects")
                ready(endpoint, process, log)
                yield endpoint
        finally:
            shutil.rmtree(data, ignore_errors=True)

    @contextmanager
    def discarding(self) -> Iterator[Endpoint]:
        if not self.dev_s3:
            raise Failed("no dev-s3 binary: build it, or name it by --dev-s3")
        home = Path(tempfile.mkdtemp(prefix="dev-s3-", dir=self.work))
        try:
            log = home / "log"
            argv = [str(self.dev_s3), "--discard", "--addr", "127.0.0.1:0", "--bucket", BUCKET]
            argv += ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
            with running(Command(argv, {"PATH": os.environ["PATH"], "HOME": str(home)}), log) as process:
                yield Endpoint(announced(process, log), ACCESS_KEY, SECRET_KEY)
        finally:
            shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ready(endpoint: Endpoint, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the server takes a bucket and an object, so that no tool pays for its first request."""
    deadline = time.monotonic() + 60
    while True:
        client = Client(endpoint)
        try:
            client.make_bucket(BUCKET)
            client.put(BUCKET, "warm-up", os.urandom(8 << 20))
            client.delete(BUCKET, "warm-up")
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the server did not start: {tail(log)}") from error
            time.sleep(0.1)
        finally:
            client.close()


def announced(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address in the line `listening on http://...`."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("listening on "):
                return line.removeprefix("listening on ").strip()
        time.sleep(0.02)
    raise Failed(f"dev-s3 did not start: {tail(log)}")
