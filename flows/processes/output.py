"""Write to standard output and error whatever becomes of their readers, and whatever characters these can show."""

import io
import os
import signal
import sys
from typing import Any

READER_HAS_LEFT = 128 + signal.SIGPIPE
"""Exit status of a command whose output has lost its reader, as a shell gives it to a program that a signal ends."""


class _Output(io.FileIO):
    """Standard output: the command ends without a word if nobody reads on, and says if it cannot be written."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for what is still to be written
            if isinstance(error, BrokenPipeError):
                raise SystemExit(READER_HAS_LEFT) from None
            sys.stderr.write(f"fineweb-mask: standard output: {error.strerror}\n")
            raise SystemExit(1) from None


class _Errors(io.FileIO):
    """Standard error: what cannot be said there is no reason to end the work."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare_output() -> None:
    """Have this process write in this way, and what an encoding lacks as its escape; a closed stream takes nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # else the next file that is opened would take its place
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
            setattr(sys, f"__{name}__", getattr(sys, name))  # which keeps it open
    for name, kind in (("stdout", _Output), ("stderr", _Errors)):
        before = getattr(sys, name)
        buffer = io.BufferedWriter(kind(before.fileno(), "w", closefd=False))
        is_prompt = before.line_buffering or before.write_through
        stream = io.TextIOWrapper(buffer, before.encoding, "backslashreplace", line_buffering=is_prompt)
        setattr(sys, name, stream)


def flush_output(code: int) -> int:
    """Write what is left; return the exit status of a command that would end with `code`."""
    try:
        sys.stdout.flush()
    except SystemExit as ended:
        return int(ended.code or code)
    finally:
        sys.stderr.flush()
    return code
