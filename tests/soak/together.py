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
from concurrent.futures import ThreadPoolExecutor, wait
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
SELECTING = ("sql", "sql again", "Python")
"""Questions whose answers are those of one of the runs; the others hold times."""


class Shared:
    """A workspace that several processes run and read."""

    def __init__(self, soak: Soak) -> None:
        self.soak, self.folder = soak, soak.folder / "shared"
        self.allowed: dict[str, set[str]] = {name: set() for name in QUESTIONS}
        self.counted, self.wrong, self.ended = Counter[str](), list[str](), threading.Event()

    def ask(self, name: str, workspace: Path) -> tuple[int, str]:
        """Return the exit status and what was said: on standard output if it is 0."""
        done = self.soak.call(*(part.replace("{}", str(workspace)) for part in QUESTIONS[name]))
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    def read(self, name: str) -> None:
        """Ask a question until the writers have ended."""
        while not self.ended.is_set():
            code, answer = self.ask(name, self.folder)
            self.counted[name] += 1
            if code != 0 or (name in SELECTING and answer not in self.allowed[name]):
                self.wrong.append(f"{name} ended with {code}: {answer[-500:]}")

    def write(self, lamb: str, count: int) -> None:
        """Run again and again."""
        for _ in range(count):
            try:
                self.soak.finish(self.folder, RUNS[lamb], alone=False)
            except FoundError as error:
                self.wrong.append(str(error))

    def use(self, count: int) -> None:
        """Let all that read and write do so at the same time."""
        with ThreadPoolExecutor(len(QUESTIONS) + len(RUNS)) as pool:
            reading = [pool.submit(self.read, name) for name in QUESTIONS]
            wait([pool.submit(self.write, lamb, count) for lamb in RUNS])
            self.ended.set()
            for one in reading:
                one.result()


def main() -> int:
    """Write and read at the same time."""
    parser = argparse.ArgumentParser(description="Run and read one workspace at the same time.")
    parser.add_argument("--runs", type=int, default=20, help="Of both that write.")
    options, started, first = parser.parse_args(), time.monotonic(), min(RUNS)
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(Path(temporary))
        shared = Shared(soak)
        with soak.server():
            for lamb, run in RUNS.items():
                soak.finish(soak.folder / lamb, run)
                for name in SELECTING:
                    shared.allowed[name].add(shared.ask(name, soak.folder / lamb)[1])
            soak.finish(shared.folder, RUNS[first])
            shared.use(options.runs // len(RUNS))
            soak.finish(shared.folder, RUNS[first])
        found, alone = bytes_of(shared.folder), bytes_of(soak.folder / first)
    wrong = shared.wrong + [f"{name} has other bytes" for name in alone if found.get(name) != alone[name]]
    answered = ", ".join(f"{count} of {name}" for name, count in shared.counted.items())
    print(f"{options.runs} runs, {answered}: {len(wrong)} wrong ({time.monotonic() - started:.0f} s)")
    print(*wrong[:10], sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
