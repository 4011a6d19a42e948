"""Run and read one workspace at the same time: two that write and five that read: `make soak`, not part of the tests.

`python -m tests.soak.together --runs 20`: two processes run the sample's recipe with two values of lamb, again and
again, in one workspace; five others meanwhile ask for what is selected, with `sql` and from Python, for the state, and
verify the dataset. Each answer is that of one of the two runs, whole; a run waits for the other. In the end the
workspace has the bytes of a run that nothing disturbed, beside what the other run made. Exit status 1 with what was
found instead, else 0.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.soak.kill_anywhere import RUN, FoundError, Soak, bytes_of

LAMBS = ("0.2", "0.8")
SELECTED = "SELECT count(*), md5(string_agg(id, ',' ORDER BY id)) FROM selected"
IN_PYTHON = f"import sys, fineweb_mask as fm; print(fm.open(sys.argv[1]).sql({SELECTED!r}).fetchall())"


QUESTIONS = {
    "sql": ("-m", "fineweb_mask.flows.cli", "sql", "{}", SELECTED, "--json"),
    "sql again": ("-m", "fineweb_mask.flows.cli", "sql", "{}", SELECTED, "--json"),
    "Python": ("-c", IN_PYTHON, "{}"),
    "status": ("-m", "fineweb_mask.flows.cli", "status", "{}"),
    "verify": ("-m", "fineweb_mask.flows.cli", "verify", "{}"),
}


def ask(soak: Soak, question: Sequence[str], workspace: Path) -> tuple[int, str]:
    """Return the exit status and what was said: on standard output if it is 0."""
    command = [sys.executable, *(part.replace("{}", str(workspace)) for part in question)]
    done = subprocess.run(command, env=soak.environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


class Shared:
    """A workspace that several processes run and read."""

    def __init__(self, soak: Soak, folder: Path, allowed: dict[str, set[str]]) -> None:
        self.folder = folder
        self.answers = Counter[str]()
        self.wrong: list[str] = []
        self._soak, self._allowed, self._ended = soak, allowed, threading.Event()

    def read(self, name: str) -> None:
        """Ask a question until the writers have ended."""
        while not self._ended.is_set():
            code, answer = ask(self._soak, QUESTIONS[name], self.folder)
            self.answers[name] += 1
            if code != 0 or (self._allowed[name] and answer not in self._allowed[name]):
                self.wrong.append(f"{name} ended with {code}: {answer[-500:]}")

    def write(self, run: Sequence[str], count: int) -> None:
        """Run again and again."""
        for _ in range(count):
            try:
                self._soak.finish(self.folder, run, alone=False)
            except FoundError as error:
                self.wrong.append(str(error))

    def use(self, runs: Sequence[Sequence[str]], count: int) -> None:
        """Let all that read and write do so at the same time."""
        reading = [threading.Thread(target=self.read, args=(name,)) for name in QUESTIONS]
        writing = [threading.Thread(target=self.write, args=(run, count)) for run in runs]
        for thread in reading + writing:
            thread.start()
        for thread in writing:
            thread.join()
        self._ended.set()
        for thread in reading:
            thread.join()


def main() -> int:
    """Write and read at the same time."""
    parser = argparse.ArgumentParser(description="Run and read one workspace at the same time.")
    parser.add_argument("--runs", type=int, default=20, help="Of both that write.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        soak, begun = Soak(Path(temporary), 0), time.monotonic()
        runs = {lamb: (*RUN, f"--set=selection.lamb={lamb}") for lamb in LAMBS}
        allowed: dict[str, set[str]] = {name: set() for name in QUESTIONS}
        with soak.server():
            for lamb, run in runs.items():
                soak.finish(Path(temporary, lamb), run)
                for name in ("sql", "sql again", "Python"):
                    allowed[name].add(ask(soak, QUESTIONS[name], Path(temporary, lamb))[1])
            shared = Shared(soak, Path(temporary, "shared"), allowed)
            soak.finish(shared.folder, runs[LAMBS[0]])
            shared.use(list(runs.values()), options.runs // len(runs))
            soak.finish(shared.folder, runs[LAMBS[0]])
            found, alone = bytes_of(shared.folder), bytes_of(Path(temporary, LAMBS[0]))
            shared.wrong += [f"{name} has other bytes" for name in alone if found.get(name) != alone[name]]
        counted = ", ".join(f"{count} of {name}" for name, count in shared.answers.items())
        print(f"{options.runs} runs, {counted}: {len(shared.wrong)} wrong ({time.monotonic() - begun:.0f} s)")
        print(*shared.wrong[:10], sep="\n")
    return int(bool(shared.wrong))


if __name__ == "__main__":
    sys.exit(main())
