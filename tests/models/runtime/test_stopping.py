"""A stop request is heard until it is cleared for the next run."""

import pytest

from fineweb_mask.models.runtime.stopping import (
    StoppedError,
    clear_stop_request,
    despite_stop,
    raise_if_stopped,
    request_stop,
)


def test_only_a_stop_request_raises_but_where_it_is_said_how_a_run_ended():
    raise_if_stopped()
    request_stop()
    with despite_stop():
        raise_if_stopped()
    with pytest.raises(StoppedError, match="stopped on request"):
        raise_if_stopped()
    clear_stop_request()
    raise_if_stopped()
