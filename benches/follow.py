"""The rows in which a tool follows a directory: how soon a file is durable, a burst, the end, and idling."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench_run import Bench, arrived
from measuring import Failed, cpu_seconds, memory_mib, running, settle, tail
from report import Row
from s3 import KEY, Client, Endpoint, last_modified
from servers import BUCKET
from tools import Tool
from workloads import Noise, Tree, empty, written

KIB = 1024
PREFIX = "run/"
START_S, FILE_S, ALL_S, EXIT_S = 60.0, 30.0, 300.0, 60.0
# The loop that people write looks for DONE every 30 seconds.
SHELL_LOOP_WAIT_S = 15.0


@dataclass(frozen=True)
class Followed:
    """A tool that follows `tree` into an empty server, and our eye on that server."""

    tree: Tree
    at: Endpoint
    client: Client
    process: subprocess.Popen[bytes]

    def wait_for_all(self) -> float:
        """Seconds since 1970 at which the last object was there.

        Looks at one page behind the last key up to which nothing is missing, so that looking costs the server little;
        the time is the server's own LastModified, taken at the end from one full listing.
        """
        keys = [PREFIX + name for name in self.tree.names()]
        there, deadline = 0, time.monotonic() + ALL_S
        while there < len(keys):
            page = self.client.page(BUCKET, PREFIX, after=keys[there - 1] if there else "")
            shown = [key.decode() for key in KEY.findall(page) if not key.startswith(f"{PREFIX}.chiefsync/".encode())]
            before = there
            for key in shown:
                if there < len(keys) and key == keys[there]:
                    there += 1
            if there == before:
                if self.process.poll() is not None:
                    raise Failed(f"ended with {self.process.returncode}")
                if time.monotonic() > deadline:
                    raise Failed(f"{self.client.count(BUCKET, PREFIX)} of {len(keys)} objects after {ALL_S:.0f} s")
                time.sleep(0.1)
        seen = time.time()
        return min(seen, last_modified(list(self.client.pages(BUCKET, PREFIX)), PREFIX))


@contextmanager
def followed(bench: Bench, tool: Tool, tree: Tree) -> Iterator[Followed]:
    """Starts the tool and waits until it has noticed a first file."""
    with bench.servers.minio() as at:
        command = tool.watch(tree.path, at, PREFIX)
        if command is None:
            raise Failed("can't follow a directory")
        tool.forget()
        command = tool.watch(tree.path, at, PREFIX) or command
        settle()
        log = bench.work / "log"
        client = Client(at)
        probe = tree.path / "zz-ready"
        try:
            with running(command, log) as process:
                probe.write_bytes(b"ready")
                try:
                    client.wait_for(BUCKET, PREFIX + probe.name, START_S)
                except TimeoutError:
                    raise Failed(f"took up no file in {START_S:.0f} s: {tail(log)}") from None
                yield Followed(tree, at, client, process)
        finally:
            client.close()
            probe.unlink(missing_ok=True)


def watchers(bench: Bench) -> list[Tool]:
    return [tool for tool in bench.tools if type(tool).watch is not Tool.watch]


def durable(bench: Bench) -> Row:
    """From the end of close() to the object's commit in MinIO."""
    row = Row("durable", "close to durable, 64 KiB files to MinIO")
    for tool in bench.turns(row, watchers(bench)):
        with (
            bench.attempt(row, tool.name),
            empty(bench.work, 20 if bench.quick else 200, 64 * KIB) as tree,
            followed(bench, tool, tree) as seen,
        ):
            time.sleep(3)
            row.add(tool.name, latencies(seen))
    row.at_most("chiefsync", "p50_ms", 10)
    row.at_most("chiefsync", "p99_ms", 50)
    return row


def latencies(seen: Followed) -> dict[str, float]:
    noise, pauses = Noise(), random.Random(2)
    taken_ms = []
    for name in seen.tree.names():
        # Pauses of no fixed length, so that no timer of a tool falls into step with us.
        time.sleep(pauses.uniform(0.02, 0.05))
        with (seen.tree.path / name).open("wb", buffering=0) as out:
            out.write(noise.take(seen.tree.size))
        closed = time.perf_counter()
        try:
            taken_ms.append((seen.client.wait_for(BUCKET, PREFIX + name, FILE_S) - closed) * 1000)
        except TimeoutError:
            raise Failed(f"a closed file was not there after {FILE_S:.0f} s") from None
    taken_ms.sort()
    last = len(taken_ms) - 1
    return {"p50_ms": taken_ms[last // 2], "p99_ms": taken_ms[round(last * 0.99)], "max_ms": taken_ms[last]}


def burst(bench: Bench) -> Row:
    """From the first file written to the last one remote."""
    row = Row("burst", "20,000 x 4 KiB in a burst, followed to MinIO")
    for tool in bench.turns(row, watchers(bench)):
        with (
            bench.attempt(row, tool.name),
            empty(bench.work, 1000 if bench.quick else 20_000, 4 * KIB) as tree,
            followed(bench, tool, tree) as seen,
        ):
            time.sleep(1)
            cpu_before_s = cpu_seconds(seen.process.pid)
            start = time.time()
            tree.write()
            written_s = time.time() - start
            wall_s = seen.wait_for_all() - start
            cpu_s = cpu_seconds(seen.process.pid) - cpu_before_s
            _, peak_mib = memory_mib(seen.process.pid)
            row.add(tool.name, {"wall_s": wall_s, "written_s": written_s, "cpu_s": cpu_s, "peak_rss_mib": peak_mib})
    row.share_of("chiefsync", "mc", 0.6)
    return row


def done(bench: Bench) -> Row:
    """From the marker to the exit, everything else being up already."""
    row = Row("done", "DONE to exit, 1,000 x 16 KiB already on MinIO")
    count = 100 if bench.quick else 1000
    aws = bench.peer("aws")
    for _ in range(bench.rounds):
        if bench.ours and "chiefsync" not in row.failures:
            with bench.attempt(row, "chiefsync"), written(bench.work, count, 16 * KIB) as tree:
                row.add("chiefsync", {"exit_ms": exit_ms(bench, bench.ours, tree)})
        if aws and "shell loop" not in row.failures:
            with (
                bench.attempt(row, "shell loop"),
                written(bench.work, count, 16 * KIB) as tree,
                bench.servers.minio() as at,
            ):
                bench.cost(aws.sync(tree.path, at, PREFIX))
                arrived(at, PREFIX, tree)
                sync_s = bench.cost(aws.sync(tree.path, at, PREFIX)).wall_s
                row.add("shell loop", {"exit_ms": (SHELL_LOOP_WAIT_S + sync_s) * 1000})
    if aws:
        row.notes.append(
            f"shell loop: {SHELL_LOOP_WAIT_S:g} s until it looks, by calculation, and one measured aws s3 sync"
        )
    row.at_most("chiefsync", "exit_ms", 200)
    return row


def exit_ms(bench: Bench, tool: Tool, tree: Tree) -> float:
    with followed(bench, tool, tree) as seen:
        seen.wait_for_all()
        time.sleep(5)
        start = time.perf_counter()
        (tree.path / "DONE").touch()
        try:
            code = seen.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"not ended {EXIT_S:.0f} s after DONE") from None
        taken_ms = (time.perf_counter() - start) * 1000
        if code != 0:
            raise Failed(f"exit {code} after DONE: {tail(bench.work / 'log')}")
        return taken_ms


def idle(bench: Bench) -> Row:
    """After the upload of a tree, in the same process: what following costs while nothing happens."""
    row = Row("idle", "following 10,000 x 1 KiB while nothing happens")
    span_s = 10.0 if bench.quick else 60.0
    with written(bench.work, 1000 if bench.quick else 10_000, KIB) as tree:
        for tool in watchers(bench):
            with bench.attempt(row, tool.name), followed(bench, tool, tree) as seen:
                seen.wait_for_all()
                time.sleep(10)
                cpu_s, start = cpu_seconds(seen.process.pid), time.perf_counter()
                time.sleep(span_s)
                cpu_s = cpu_seconds(seen.process.pid) - cpu_s
                percent = 100 * cpu_s / (time.perf_counter() - start)
                rss_mib, peak_mib = memory_mib(seen.process.pid)
                row.add(tool.name, {"cpu_percent": percent, "rss_mib": rss_mib, "peak_rss_mib": peak_mib})
    row.at_most("chiefsync", "cpu_percent", 0.5)
    row.at_most("chiefsync", "rss_mib", 24)
    return row
