"""What was measured, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

Figures = dict[str, float]

UNITS = {
    "wall_s": "wall s",
    "written_s": "written s",
    "cpu_s": "CPU s",
    "cpu_s_per_gib": "CPU s/GiB",
    "rss_mib": "RSS MiB",
    "peak_rss_mib": "peak MiB",
    "mib_per_s": "MiB/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "max_ms": "max ms",
    "exit_ms": "exit ms",
    "cpu_percent": "% of a core",
    "size_mib": "MiB",
}


@dataclass
class Check:
    """One figure of ours against what it has to reach. `met` is None where nothing can be said."""

    what: str
    figure: float | None
    reach: str
    met: bool | None
    peer: str = ""
    ratio: float | None = None


@dataclass
class Row:
    """One workload: every tool's samples, a sample a round, and what they are judged by."""

    name: str
    title: str
    samples: dict[str, list[Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def add(self, tool: str, figures: Figures) -> None:
        self.samples.setdefault(tool, []).append(figures)

    def figure(self, tool: str, unit: str) -> float | None:
        """The median over the rounds."""
        values = [sample[unit] for sample in self.samples.get(tool, []) if unit in sample]
        return median(values) if values else None

    def figures(self, tool: str) -> Figures:
        units = self.samples[tool][0]
        return {unit: median([sample[unit] for sample in self.samples[tool] if unit in sample]) for unit in units}

    def at_most(self, tool: str, unit: str, limit: float) -> None:
        """Ours stays under a fixed limit."""
        figure = self.figure(tool, unit)
        met = None if figure is None else figure <= limit
        self.checks.append(Check(f"{tool}: {UNITS[unit]}", figure, f"<= {limit:g}", met))

    def times_faster(self, tool: str, peers: list[str], factor: float) -> None:
        """The fastest peer needs `factor` times our wall time."""
        ours = self.figure(tool, "wall_s")
        timed = {peer: value for peer in peers if (value := self.figure(peer, "wall_s"))}
        fastest = min(timed, key=lambda peer: timed[peer], default="")
        ratio = timed[fastest] / ours if fastest and ours else None
        met = None if ratio is None else ratio >= factor
        self.checks.append(
            Check(f"{tool}: times the fastest peer", ratio, f">= {factor:g}", met, peer=fastest, ratio=ratio)
        )

    def share_of(self, tool: str, base: str, limit: float) -> None:
        """Our wall time as a share of another's, measured in the same run."""
        ours, theirs = self.figure(tool, "wall_s"), self.figure(base, "wall_s")
        share = ours / theirs if ours and theirs else None
        met = None if share is None else share <= limit
        self.checks.append(Check(f"{tool}: share of {base}", share, f"<= {limit:g}", met, peer=base, ratio=share))

    def show(self) -> str:
        """The row as a block of text, its tools one below the other."""
        lines = [f"\n{self.name}: {self.title}"]
        units = list(dict.fromkeys(unit for samples in self.samples.values() for s in samples for unit in s))
        width = max([len(tool) for tool in [*self.samples, *self.failures]], default=0)
        if units:
            lines.append(f"  {'':{width}}  " + "  ".join(f"{UNITS[unit]:>11}" for unit in units))
        for tool in self.samples:
            figures = self.figures(tool)
            cells = [f"{number(figures[unit]) if unit in figures else '-':>11}" for unit in units]
            lines.append(f"  {tool:{width}}  " + "  ".join(cells))
        lines += [f"  {tool:{width}}  - ({why})" for tool, why in self.failures.items()]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  {verdict(check):7} {describe(check)}" for check in self.checks]
        return "\n".join(lines)


def number(value: float) -> str:
    """Three digits that count, and no more."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def verdict(check: Check) -> str:
    return {True: "met", False: "NOT MET", None: "?"}[check.met]


def describe(check: Check) -> str:
    figure = "not measured" if check.figure is None else number(check.figure)
    return f"{check.what}{f' ({check.peer})' if check.peer else ''} {figure}, to reach {check.reach}"


def summary(rows: list[Row], quick: bool) -> str:
    """Every check of the run, one a line."""
    heads = ("row", "figure", "ours", "reach", "", "peers")
    table: list[tuple[str, ...]] = []
    for row in rows:
        for check in row.checks:
            unit = next((unit for unit, name in UNITS.items() if check.what.endswith(f": {name}")), "wall_s")
            peers = [
                f"{tool} {number(value)}"
                for tool in row.samples
                if not tool.startswith("chiefsync") and (value := row.figure(tool, unit)) is not None
            ]
            ours = "-" if check.figure is None else number(check.figure)
            shown = f"{', '.join(peers)}{f' {UNITS[unit]}' if peers else ''}"
            table.append((row.name, check.what, ours, check.reach, "quick" if quick else verdict(check), shown))
    widths = [max(len(line[i]) for line in [heads, *table]) for i in range(len(heads))]
    return "\n".join(
        "  ".join(f"{cell:{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in [heads, *table]
    )


def machine(work: Path) -> dict[str, Any]:
    """The facts without which a figure says nothing."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "sha_extensions": any(name in info.split() for name in ("sha_ni", "sha2")),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "file_system": said(["stat", "-f", "-c", "%T", str(work)]),
        "python": platform.python_version(),
        "commit": said(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]),
        "load_before": round(os.getloadavg()[0], 2),
    }


def said(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def write_json(path: Path, head: dict[str, Any], rows: list[Row]) -> None:
    body = []
    for row in rows:
        medians = {tool: row.figures(tool) for tool in row.samples}
        body.append(asdict(row) | {"medians": medians})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 1, **head, "rows": body}, indent=2) + "\n")
