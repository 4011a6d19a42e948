"""Run and read one workspace at the same time: two that write and five that read: `make soak`, not part of the tests.

`python -m tests.soak.together --runs 20`: two processes run the sample's recipe with two values of lamb, again and
again, in one workspace; five others meanwhile ask for what is selected, with `sql` and from Python, for the state, and
verify the dataset. Each answer is that of one of the two runs, whole; a run waits for the other. In the end the
workspace has the bytes of a run that nothing disturbed, beside what the other run made. Exit status 1 with what was
found instead, else 0.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soak.workspaces import CLI, RUN, FoundError, Soak, bytes_of

RUNS = {lamb: (*RUN, f"--set=selection.lamb={lamb}") for lamb in ("0.2", "0.8")}
SELECTED = "SELECT count(*), md5(string_agg(id, ',' ORDER BY id)) FROM selected"
IN_PYTHON = f"import sys, fineweb_mask as fm; print(fm.open(sys.argv[1]).sql({SELECTED!r}).fetchall())"
QUESTIONS = {
    "sql": ("-m", CLI, "sql", "{}", SELECTED, "--json"),
    "sql again": ("-m", CLI, "sql", "{}", SELECTED, "--json"),
    "Python": ("-c", IN_PYTHON, "{}"),
    "status": ("-m", CLI, "status", "{}"),
    "verify": ("-m", CLI, "verify", "{}"),
}
CHANGE_NOTHING = ("status", "verify")
"""Questions whose answers are also right where they are neither run's: they hold times."""


def main() -> int:
    """Write and read at the same time."""
    parser = argparse.ArgumentParser(description="Run and read one workspace at the same time.")
    parser.add_argument("--runs", type=int, default=20, help="Of both that write.")
    options = parser.parse_args()
    counted, wrong, ended, begun = Counter[str](), list[str](), threading.Event(), time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        soak, shared = Soak(Path(temporary)), Path(temporary, "shared")
        allowed: dict[str, set[str]] = {name: set() for name in QUESTIONS}

        def ask(name: str, workspace: Path) -> tuple[int, str]:
            done = soak.call(*(part.replace("{}", str(workspace)) for part in QUESTIONS[name]))
            return done.returncode, done.stdout if done.returncode == 0 else done.stderr

        def read(name: str) -> None:
            while not ended.is_set():
                code, answer = ask(name, shared)
                counted[name] += 1
                if code != 0 or (name not in CHANGE_NOTHING and answer not in allowed[name]):
                    wrong.append(f"{name} ended with {code}: {answer[-500:]}")

        def write(lamb: str) -> None:
            try:
                for _ in range(options.runs // len(RUNS)):
                    soak.finish(shared, RUNS[lamb], alone=False)
            except FoundError as error:
                wrong.append(str(error))

        with soak.server():
            for lamb, run in RUNS.items():
                soak.finish(soak.folder / lamb, run)
                for name in QUESTIONS:
                    allowed[name].add(ask(name, soak.folder / lamb)[1])
            first = min(RUNS)
            soak.finish(shared, RUNS[first])
            with ThreadPoolExecutor(len(QUESTIONS) + len(RUNS)) as pool:
                reading = [pool.submit(read, name) for name in QUESTIONS]
                for writing in [pool.submit(write, lamb) for lamb in RUNS]:
                    writing.result()
                ended.set()
                for one in reading:
                    one.result()
            soak.finish(shared, RUNS[first])
            found, alone = bytes_of(shared), bytes_of(soak.folder / first)
            wrong += [f"{name} has other bytes" for name in alone if found.get(name) != alone[name]]
    answered = ", ".join(f"{count} of {name}" for name, count in counted.items())
    print(f"{options.runs} runs, {answered}: {len(wrong)} wrong ({time.monotonic() - begun:.0f} s)")
    print(*wrong[:10], sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
