"""The files that are carried: bytes that don't compress, and times that look like yesterday's."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BLOCK = 8 << 20
FILES_A_DIRECTORY = 1000


@dataclass(frozen=True)
class Tree:
    """`count` files of `size` bytes each, a thousand to a directory."""

    path: Path
    count: int
    size: int

    @property
    def bytes(self) -> int:
        return self.count * self.size

    def names(self) -> Iterator[str]:
        """Relative paths, in the order in which a listing of the bucket shows them."""
        for index in range(self.count):
            yield f"d{index // FILES_A_DIRECTORY:03}/f{index:06}.bin"

    def make_directories(self) -> None:
        for directory in sorted({name.split("/")[0] for name in self.names()}):
            (self.path / directory).mkdir(parents=True, exist_ok=True)

    def write(self) -> None:
        noise = Noise()
        for name in self.names():
            with (self.path / name).open("wb", buffering=0) as out:
                left = self.size
                while left:
                    left -= out.write(noise.take(min(left, BLOCK)))

    def read(self) -> None:
        """Brings every file into the page cache, so that each run starts from the same warmth."""
        buffer = bytearray(1 << 20)
        for name in self.names():
            with (self.path / name).open("rb", buffering=0) as source:
                while source.readinto(buffer):
                    pass


class Noise:
    """Slices of one random block at changing offsets: no two alike, and far cheaper than fresh random bytes."""

    def __init__(self) -> None:
        self._block = memoryview(os.urandom(2 * BLOCK))
        self._random = random.Random(1)

    def take(self, size: int) -> memoryview:
        offset = self._random.randrange(len(self._block) - size)
        return self._block[offset : offset + size]


@contextmanager
def empty(work: Path, count: int, size: int) -> Iterator[Tree]:
    """The directories of a tree whose files are written later. Removed after the block."""
    tree = Tree(work / "src", count, size)
    shutil.rmtree(tree.path, ignore_errors=True)
    tree.path.mkdir()
    try:
        tree.make_directories()
        yield tree
    finally:
        shutil.rmtree(tree.path, ignore_errors=True)


@contextmanager
def written(work: Path, count: int, size: int) -> Iterator[Tree]:
    """A tree that nobody has touched for a while: who looks at a file's age finds it settled."""
    with empty(work, count, size) as tree:
        tree.write()
        hour_ago = time.time() - 3600
        for name in tree.names():
            os.utime(tree.path / name, (hour_ago, hour_ago))
        time.sleep(2.5)
        yield tree
