"""What every row needs: the tools, the servers, and the order of turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measuring import Command, Cost, Failed, measure, settle
from report import Row
from s3 import Client, Endpoint
from servers import BUCKET, Servers
from tools import Chiefsync, Tool
from workloads import Tree

TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Bench:
    """One run of the harness."""

    work: Path
    tools: list[Tool]
    servers: Servers
    rounds: int
    quick: bool

    @property
    def ours(self) -> Chiefsync | None:
        return next((tool for tool in self.tools if isinstance(tool, Chiefsync)), None)

    @property
    def peers(self) -> list[Tool]:
        return [tool for tool in self.tools if not isinstance(tool, Chiefsync)]

    def peer(self, name: str) -> Tool | None:
        return next((tool for tool in self.peers if tool.name == name), None)

    def turns(self, row: Row, tools: list[Tool]) -> Iterator[Tool]:
        """Round by round every tool that has not failed, each round beginning with another one."""
        for number in range(self.rounds):
            first = number % max(len(tools), 1)
            for tool in tools[first:] + tools[:first]:
                if tool.name not in row.failures:
                    yield tool

    @contextmanager
    def attempt(self, row: Row, name: str) -> Iterator[None]:
        """A failure inside ends this tool's part in the row, not the row."""
        try:
            yield
        except (Failed, OSError) as error:
            row.failures[name] = str(error)

    def cost(self, command: Command) -> Cost:
        settle()
        return measure(command, self.work / "log", TIMEOUT_S)


def arrived(at: Endpoint, prefix: str, tree: Tree) -> None:
    """A tool that exits with 0 has to have brought everything."""
    client = Client(at)
    try:
        count = client.count(BUCKET, prefix)
    finally:
        client.close()
    if count != tree.count:
        raise Failed(f"exit 0, but {count} of {tree.count} objects are there")
