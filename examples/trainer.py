"""A trainer without a framework: what chiefsync expects of the real one, in forty lines.

Writes a log that stays open, checkpoints that appear whole by a rename, a pointer to the newest, a final model, and at the
very end DONE, or FAILED with the reason.
"""

import json
import os
import sys
import time
from pathlib import Path

STEPS = 5
KEEP = 2


def save(output: Path, step: int, weights: bytes) -> None:
    """Writes a checkpoint under a temporary name, makes it durable, then gives it its name."""
    temporary = output / "checkpoints" / f"step-{step:04}.tmp"
    temporary.mkdir(parents=True)
    for name, content in (
        ("weights.bin", weights),
        ("state.json", json.dumps({"step": step}).encode()),
    ):
        with (temporary / name).open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
    temporary.rename(temporary.with_suffix(""))
    pointer = output / "checkpoints" / "latest.tmp"
    pointer.write_text(f"step-{step:04}\n")
    pointer.rename(pointer.with_suffix(""))


def rotate(output: Path, step: int) -> None:
    """Removes what is too old; the bucket keeps it."""
    old = output / "checkpoints" / f"step-{step - KEEP:04}"
    if old.is_dir():
        for file in old.iterdir():
            file.unlink()
        old.rmdir()


def train(output: Path) -> None:
    with (output / "log.jsonl").open("a") as log:
        for step in range(1, STEPS + 1):
            time.sleep(1)  # where the real one computes
            log.write(json.dumps({"step": step, "loss": 1 / step}) + "\n")
            log.flush()
            save(output, step, os.urandom(4 << 20))
            rotate(output, step)
    (output / "model.bin").write_bytes(os.urandom(8 << 20))


def main() -> int:
    output = Path(sys.argv[1])
    output.mkdir(parents=True, exist_ok=True)
    for marker in ("DONE", "FAILED"):
        (output / marker).unlink(missing_ok=True)
    try:
        train(output)
    except BaseException as error:
        (output / "FAILED").write_text(
            json.dumps({"reason": f"{type(error).__name__}: {error}"})
        )
        raise
    (output / "DONE").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
