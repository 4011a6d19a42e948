"""Answer messages that come in over sockets, in a process that is run with `python -m`, or in forks of it."""

import gc
import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait


def serve(answer: Callable[[bytes], bytes], sockets: Sequence[int]) -> None:
    """Answer every message from each socket until its other end is closed.

    With several sockets, the process forks for each of them, and the forks share the memory of what it loaded; it must
    have one thread. When one fork ends, all do.

    Parameters
    ----------
    answer
        Returns the answer to a message.
    sockets
        Inherited file descriptors.
    """
    if len(sockets) == 1:
        _answer_all(answer, sockets[0])
        return
    gc.collect()
    gc.freeze()  # a later collection would write to the shared memory pages and so copy them
    context = multiprocessing.get_context("fork")
    forks = [context.Process(target=_answer_all, args=(answer, socket), daemon=True) for socket in sockets]
    for fork in forks:
        fork.start()
    wait([fork.sentinel for fork in forks])  # multiprocessing ends daemons at exit


def _answer_all(answer: Callable[[bytes], bytes], socket: int) -> None:
    connection = Connection(socket)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))
