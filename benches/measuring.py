"""Starting processes, and what they cost. Whatever is started here is gone when its `with` block ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LAUNCH = Path(__file__).with_name("launch.py")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024


class Failed(Exception):
    """A tool did not do its work. The row goes on without it and says why."""


@dataclass(frozen=True)
class Command:
    """What to start, with the whole environment it gets."""

    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Cost:
    """A whole process, from its start to its end."""

    wall_s: float
    cpu_s: float
    rss_bytes: int

    def figures(self) -> dict[str, float]:
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s, "rss_mib": self.rss_bytes / MIB}


def measure(command: Command, log: Path, timeout_s: float) -> Cost:
    """Runs a command to its end. Anything but exit 0 is `Failed`, with the end of what it said."""
    argv = [sys.executable, "-I", "-S", str(LAUNCH), str(log), *command.argv]
    process = subprocess.Popen(argv, env=command.env, stdout=subprocess.PIPE, start_new_session=True)
    try:
        told, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout_s:.0f} s") from None
    finally:
        end(process)
    if process.returncode != 0:
        raise Failed(f"could not be started: {' '.join(command.argv)}")
    cost = json.loads(told)
    if cost.pop("code") != 0:
        raise Failed(f"failed: {tail(log)}")
    return Cost(**cost)


@contextmanager
def running(command: Command, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs beside the block and is killed after it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command.argv,
            env=command.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with all that it started, and waits for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "(it said nothing)"


def cpu_seconds(pid: int) -> float:
    """User and system time of a running process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a running process: now, and at its highest."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024


def settle() -> None:
    """Lets what the last run left behind reach the disk, so that the next one doesn't pay for it."""
    os.sync()
    time.sleep(0.2)
