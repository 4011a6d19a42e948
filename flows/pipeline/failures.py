"""End a flow or a task that fails for a reason that a person can mend with that reason alone, without a traceback.

Prefect logs the traceback of what a flow raises. The message of the state `Failed` is one line of the log, and what the
Prefect UI shows; who asks for the result gets the error all the same, as if it had been raised.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from fineweb_mask.models.errors import message_of

P = ParamSpec("P")
R = TypeVar("R")


def fails_in_one_line(run: Callable[P, R]) -> Callable[P, R]:
    """Let the function of a flow or a task return the state `Failed` for an error that a person can mend.

    A bug is raised. Around a flow's function, it stands directly below `@flow`.
    """

    @wraps(run)
    def run_or_fail(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return run(*arguments, **options)
        except Exception as error:
            if (message := message_of(error)) is None:
                raise
            from prefect.states import Failed

            return cast("R", Failed(message=message, data=error))

    return run_or_fail
