"""Runs one command and prints what it cost as a line of JSON: `python3 -I -S launch.py LOG COMMAND...`

A process of its own, and a small one, for two reasons: the kernel counts the memory of whoever forks into the peak of
what is started, so a harness of 40 MiB would hide a tool of 30; and wait4 gives the usage of exactly this child.
"""

import json
import os
import sys
import time

log, command = sys.argv[1], sys.argv[2:]
actions = [
    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
    (os.POSIX_SPAWN_DUP2, 1, 2),
]
start = time.perf_counter()
pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
_, status, usage = os.wait4(pid, 0)
wall_s = time.perf_counter() - start
cost = {
    "code": os.waitstatus_to_exitcode(status),
    "wall_s": wall_s,
    "cpu_s": usage.ru_utime + usage.ru_stime,
    "rss_bytes": usage.ru_maxrss * 1024,
}
print(json.dumps(cost), flush=True)
