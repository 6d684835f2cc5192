"""The tools that are measured: ours and its peers, each as its own manual would have it called."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from measuring import Command
from s3 import Endpoint
from servers import BUCKET


class Tool(ABC):
    """A program that brings a directory to a prefix, once or for as long as it runs."""

    name: str
    # Whether what another tool uploaded counts as done for this one. rclone compares a time that only it stores.
    trusts_others = True

    def __init__(self, binary: Path, work: Path) -> None:
        self.binary = binary
        self.work = work

    @abstractmethod
    def sync(self, source: Path, at: Endpoint, prefix: str) -> Command: ...

    def watch(self, source: Path, at: Endpoint, prefix: str) -> Command | None:
        """None where the tool can't follow a directory."""
        return None

    def version(self) -> str:
        return first_line([str(self.binary), "--version"])

    def forget(self) -> None:
        """Drops what the tool keeps on this machine between runs, so that the next run is a first one."""
        return

    def env(self, at: Endpoint) -> dict[str, str]:
        """Nothing of the caller's settings gets in."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.work),
            "LANG": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": at.access_key,
            "AWS_SECRET_ACCESS_KEY": at.secret_key,
            "AWS_REGION": at.region,
            "AWS_DEFAULT_REGION": at.region,
            "AWS_ENDPOINT_URL": at.url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class Chiefsync(Tool):
    name = "chiefsync"

    @property
    def control(self) -> Path:
        """Outside of SRC, so that the peers don't find a journal in the tree that they carry."""
        return self.work / "control"

    def _command(self, verb: list[str], source: Path, at: Endpoint, prefix: str) -> Command:
        self.control.mkdir(exist_ok=True)
        env = self.env(at) | {"CHIEFSYNC_CONTROL": str(self.control)}
        return Command([str(self.binary), *verb, str(source), f"s3://{BUCKET}/{prefix}"], env)

    def sync(self, source: Path, at: Endpoint, prefix: str) -> Command:
        return self._command(["sync"], source, at, prefix)

    def dry_run(self, source: Path, at: Endpoint, prefix: str) -> Command:
        return self._command(["sync", "--dry-run"], source, at, prefix)

    def watch(self, source: Path, at: Endpoint, prefix: str) -> Command:
        return self._command(["watch"], source, at, prefix)

    def forget(self) -> None:
        shutil.rmtree(self.control, ignore_errors=True)


class Aws(Tool):
    name = "aws"

    def sync(self, source: Path, at: Endpoint, prefix: str) -> Command:
        argv = [str(self.binary), "s3", "sync", "--only-show-errors", str(source), f"s3://{BUCKET}/{prefix}"]
        return Command(argv, self.env(at))


class Rclone(Tool):
    name = "rclone"
    trusts_others = False

    def sync(self, source: Path, at: Endpoint, prefix: str) -> Command:
        argv = [str(self.binary), "sync", str(source), f"bench:{BUCKET}/{prefix}"]
        remote = {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_BENCH_TYPE": "s3",
            "RCLONE_CONFIG_BENCH_PROVIDER": "Minio",
            "RCLONE_CONFIG_BENCH_ENV_AUTH": "true",
            "RCLONE_CONFIG_BENCH_ENDPOINT": at.url,
            "RCLONE_CONFIG_BENCH_REGION": at.region,
            "RCLONE_CONFIG_BENCH_NO_CHECK_BUCKET": "true",
            # The discarding server's ETags are no MD5 of anything: taking them for one would fail every upload.
            "RCLONE_CONFIG_BENCH_USE_MULTIPART_ETAG": "false",
            "RCLONE_LOG_LEVEL": "ERROR",
        }
        return Command(argv, self.env(at) | remote)

    def version(self) -> str:
        return first_line([str(self.binary), "version"])


class Mc(Tool):
    name = "mc"

    def _command(self, arguments: list[str], at: Endpoint) -> Command:
        host = at.url.replace("://", f"://{at.access_key}:{at.secret_key}@", 1)
        env = self.env(at) | {"MC_HOST_bench": host, "MC_CONFIG_DIR": str(self.work / "mc")}
        return Command([str(self.binary), "--quiet", *arguments], env)

    def sync(self, source: Path, at: Endpoint, prefix: str) -> Command:
        return self._command(["mirror", "--overwrite", str(source), f"bench/{BUCKET}/{prefix}"], at)

    def watch(self, source: Path, at: Endpoint, prefix: str) -> Command:
        return self._command(["mirror", "--watch", "--overwrite", str(source), f"bench/{BUCKET}/{prefix}"], at)

    def list(self, at: Endpoint, prefix: str) -> Command:
        return self._command(["ls", "--recursive", f"bench/{BUCKET}/{prefix}"], at)


PEERS: list[type[Tool]] = [Aws, Rclone, Mc]


def find(work: Path, binary: Path) -> tuple[list[Tool], list[str]]:
    """Ours and every peer on PATH, and a line for each that is missing."""
    tools: list[Tool] = []
    missing: list[str] = []
    if binary.is_file():
        tools.append(Chiefsync(binary, work))
    else:
        missing.append(f"chiefsync: no {binary}; build it (cargo build --release) or name it by --binary")
    for peer in PEERS:
        path = on_path(peer.name)
        if path:
            tools.append(peer(path, work))
        else:
            missing.append(f"{peer.name}: not on PATH; 'tests/tools/get {peer.name}' installs one and prints where")
    return tools, missing


def on_path(name: str) -> Path | None:
    found = shutil.which(name)
    if not found:
        return None
    path = Path(found)
    if path.parent.name == "shims" and shutil.which("pyenv"):
        # The shim is a shell script that looks for the program at each call: its time is not the tool's.
        shown = subprocess.run(["pyenv", "which", name], stdout=subprocess.PIPE, text=True)
        path = Path(shown.stdout.strip()) if shown.returncode == 0 else path
    if name == "mc" and "Midnight" in first_line([str(path), "--version"]):
        return None
    return path


def first_line(argv: list[str]) -> str:
    said = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return said.stdout.strip().splitlines()[0] if said.stdout.strip() else "unknown"


def module_version(binary: Path) -> str:
    """The version that Go built in, for tools whose --version says nothing after `go install`."""
    if not shutil.which("go"):
        return ""
    told = subprocess.run(["go", "version", "-m", str(binary)], capture_output=True, text=True).stdout
    for line in told.splitlines():
        fields = line.split("\t")
        if len(fields) > 3 and fields[1] == "mod":
            return fields[3]
    return ""
