"""The rows in which a tool runs once and ends: bulk uploads, and trees in which nothing has changed."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time

from bench_run import Bench, arrived
from measuring import MIB, Command, Failed
from report import Row
from s3 import Client, Endpoint, last_modified
from servers import BUCKET
from tools import Chiefsync, Mc, Tool
from workloads import Tree, written

KIB, GIB = 1024, 1024 * MIB
PREFIX = "run/"

BOTO3_LISTING = f"""
import boto3
for page in boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket="{BUCKET}", Prefix="{PREFIX}"):
    for item in page["Contents"]:
        item["Key"], item["Size"], item["ETag"]
"""


def discard_4g(bench: Bench) -> Row:
    row = bulk(bench, Row("discard-4g", "a 4 GiB file to a server that drops the bytes"), 1, 4 * GIB, discard=True)
    judge(bench, row, 2.3)
    row.at_most("chiefsync", "cpu_s_per_gib", 0.95)
    row.at_most("chiefsync", "rss_mib", 64)
    return row


def discard_10k(bench: Bench) -> Row:
    row = Row("discard-10k", "10,000 x 16 KiB to a server that drops the bytes")
    bulk(bench, row, 10_000, 16 * KIB, discard=True)
    judge(bench, row, 2.3)
    row.at_most("chiefsync", "cpu_s", 1.8)
    row.at_most("chiefsync", "rss_mib", 48)
    return row


def minio_1g(bench: Bench) -> Row:
    return judge(bench, bulk(bench, Row("minio-1g", "a 1 GiB file to MinIO"), 1, GIB), 1.4)


def minio_8x256m(bench: Bench) -> Row:
    return judge(bench, bulk(bench, Row("minio-8x256m", "8 x 256 MiB to MinIO"), 8, 256 * MIB), 1.4)


def minio_10k(bench: Bench) -> Row:
    return judge(bench, bulk(bench, Row("minio-10k", "10,000 x 16 KiB to MinIO"), 10_000, 16 * KIB), 1.4)


def judge(bench: Bench, row: Row, factor: float) -> Row:
    row.times_faster("chiefsync", [peer.name for peer in bench.peers], factor)
    return row


def bulk(bench: Bench, row: Row, count: int, size: int, *, discard: bool = False) -> Row:
    """Every tool uploads the same tree into an empty server, as a first run."""
    if bench.quick:
        count, size = (count // 20, size) if count > 100 else (count, size // 32)
        row.notes.append(f"quick: {count:,} x {size // KIB:,} KiB")
    serve = bench.servers.discarding if discard else bench.servers.minio
    with written(bench.work, count, size) as tree:
        for tool in bench.turns(row, bench.tools):
            with serve() as at, bench.attempt(row, tool.name):
                tool.forget()
                tree.read()
                figures = bench.cost(tool.sync(tree.path, at, PREFIX)).figures()
                arrived(at, PREFIX, tree)
                if count <= 100:
                    figures["mib_per_s"] = tree.bytes / MIB / figures["wall_s"]
                    figures["cpu_s_per_gib"] = figures["cpu_s"] / (tree.bytes / GIB)
                row.add(tool.name, figures)
    return row


def unchanged_10k(bench: Bench) -> Row:
    return unchanged(bench, Row("unchanged-10k", "nothing to do, 10,000 x 1 KiB on MinIO"), 10_000, 0.08)


def unchanged_100k(bench: Bench) -> Row:
    return unchanged(bench, Row("unchanged-100k", "nothing to do, 100,000 x 1 KiB on MinIO"), 100_000, 0.6)


def unchanged(bench: Bench, row: Row, count: int, dry_run_s: float) -> Row:
    """The second run on a tree that is already up, beside what a listing (and hashing the files) costs alone."""
    with written(bench.work, count // 20 if bench.quick else count, KIB) as tree, bench.servers.minio() as at:
        prefixes = fill(bench, row, tree, at)
        for number in range(bench.rounds):
            for tool in bench.tools:
                if tool.name in row.failures:
                    continue
                prefix = prefixes[tool.name]
                with bench.attempt(row, tool.name):
                    before = newest(at, prefix) if number == 0 else 0.0
                    row.add(tool.name, bench.cost(tool.sync(tree.path, at, prefix)).figures())
                    if number == 0 and newest(at, prefix) != before:
                        row.notes.append(f"{tool.name} uploaded again what was there")
                if isinstance(tool, Chiefsync):
                    with bench.attempt(row, "chiefsync --dry-run"):
                        row.add("chiefsync --dry-run", bench.cost(tool.dry_run(tree.path, at, prefix)).figures())
                    with bench.attempt(row, "chiefsync, journal deleted"):
                        tool.forget()
                        row.add("chiefsync, journal deleted", bench.cost(tool.sync(tree.path, at, prefix)).figures())
            listing(bench, row, tree, at)
    row.share_of("chiefsync", "one listing", 1.1)
    row.at_most("chiefsync --dry-run", "wall_s", dry_run_s)
    row.at_most("chiefsync --dry-run", "rss_mib", 64)
    row.share_of("chiefsync, journal deleted", "listing and hashing", 1.5)
    return row


def fill(bench: Bench, row: Row, tree: Tree, at: Endpoint) -> dict[str, str]:
    """Uploads the tree: once for all that go by size and age, once more for each that trusts only itself."""
    prefixes: dict[str, str] = {}
    shared = False
    # aws last: it takes the longest, and is content with what another one uploaded.
    for tool in sorted(bench.tools, key=lambda tool: tool.name == "aws"):
        prefixes[tool.name] = PREFIX if tool.trusts_others else f"{tool.name}/"
        if shared and tool.trusts_others:
            continue
        with bench.attempt(row, tool.name):
            tool.forget()
            bench.cost(tool.sync(tree.path, at, prefixes[tool.name]))
            arrived(at, prefixes[tool.name], tree)
            shared = shared or tool.trusts_others
    if not shared:
        raise Failed("no tool could upload the tree")
    return prefixes


def newest(at: Endpoint, prefix: str) -> float:
    client = Client(at)
    try:
        return last_modified(list(client.pages(BUCKET, prefix)), prefix)
    finally:
        client.close()


def listing(bench: Bench, row: Row, tree: Tree, at: Endpoint) -> None:
    """The measures that ours is held against, and two plain clients for comparison."""
    client = Client(at)
    start = time.perf_counter()
    for _ in client.pages(BUCKET, PREFIX):
        pass
    listed_s = time.perf_counter() - start
    client.close()
    row.add("one listing", {"wall_s": listed_s})
    row.add("listing and hashing", {"wall_s": listed_s + hashing_s(tree)})
    for tool in bench.peers:
        if isinstance(tool, Mc):
            with bench.attempt(row, "mc ls"):
                row.add("mc ls", bench.cost(tool.list(at, PREFIX)).figures())
    if importlib.util.find_spec("boto3"):
        with bench.attempt(row, "boto3 listing"):
            command = Command([sys.executable, "-c", BOTO3_LISTING], bench.tools[0].env(at))
            row.add("boto3 listing", bench.cost(command).figures())


def hashing_s(tree: Tree) -> float:
    """Opening, reading and hashing every file, one after the other."""
    start = time.perf_counter()
    for name in tree.names():
        descriptor = os.open(tree.path / name, os.O_RDONLY)
        while piece := os.read(descriptor, MIB):
            hashlib.sha256(piece)
        os.close(descriptor)
    return time.perf_counter() - start


def binary(bench: Bench) -> Row:
    row = Row("binary", "the stripped binary")
    for tool in bench.tools:
        if tool.name != "aws":  # a script: what it needs is an interpreter and its packages
            row.add(tool.name, {"size_mib": stripped_bytes(bench, tool) / MIB})
    row.at_most("chiefsync", "size_mib", 14)
    return row


def stripped_bytes(bench: Bench, tool: Tool) -> int:
    copy = bench.work / "stripped"
    shutil.copyfile(tool.binary, copy)
    if shutil.which("strip"):
        subprocess.run(["strip", str(copy)], stderr=subprocess.DEVNULL)
    return copy.stat().st_size
