#!/usr/bin/env python3
"""Measures chiefsync beside aws, rclone and mc, all in one run. benches/README.md tells how to read the result."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import follow
import once
import report
import tools
from bench_run import Bench
from measuring import Failed
from report import Row
from servers import Servers

ROOT = Path(__file__).resolve().parent.parent

ROWS: dict[str, Callable[[Bench], Row]] = {
    "discard-4g": once.discard_4g,
    "discard-10k": once.discard_10k,
    "minio-1g": once.minio_1g,
    "minio-8x256m": once.minio_8x256m,
    "minio-10k": once.minio_10k,
    "unchanged-10k": once.unchanged_10k,
    "unchanged-100k": once.unchanged_100k,
    "durable": follow.durable,
    "burst": follow.burst,
    "done": follow.done,
    "idle": follow.idle,
    "binary": once.binary,
}


def arguments() -> argparse.Namespace:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=list(ROWS),
        metavar="ROW",
        help="this row only; may be repeated: " + ", ".join(ROWS),
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each tool runs each row (default 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not to judge by")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "latest.json", metavar="FILE")
    parser.add_argument(
        "--dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="where files and servers' data lie meanwhile, some 8 GiB (default: the system's temporary folder)",
    )
    parser.add_argument("--binary", type=Path, default=target / "release" / "chiefsync", metavar="FILE")
    parser.add_argument("--dev-s3", type=Path, default=target / "release" / "dev-s3", metavar="FILE")
    return parser.parse_args()


def interrupted(_number: int, _frame: FrameType | None) -> None:
    """The first signal unwinds every `with` block; further ones must not stop that halfway."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    work = Path(tempfile.mkdtemp(prefix="chiefsync-bench-", dir=options.dir))
    rows: list[Row] = []
    try:
        found, missing = tools.find(work, options.binary.absolute())
        dev_s3 = options.dev_s3.absolute() if options.dev_s3.is_file() else None
        bench = Bench(work, found, Servers(work, dev_s3), options.rounds, options.quick)
        machine = report.machine(work)
        versions = {
            tool.name: " ".join(filter(None, [tool.version(), tools.module_version(tool.binary)])) for tool in found
        }
        head = {
            "machine": machine,
            "versions": versions,
            "missing": missing,
            "rounds": options.rounds,
            "quick": options.quick,
        }
        print("\n".join(f"{name}: {value}" for name, value in {**machine, **versions}.items()))
        print("".join(f"missing: {line}\n" for line in missing), end="", flush=True)
        for name in options.only or ROWS:
            try:
                row = ROWS[name](bench)
            except Failed as error:
                row = Row(name, "not measured", notes=[str(error)])
            rows.append(row)
            print(row.show(), flush=True)
            report.write_json(options.json, head, rows)
    except KeyboardInterrupt:
        print("\nstopped; cleaning up", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if rows:
            print(f"\n{report.summary(rows, options.quick)}\n\n{options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
