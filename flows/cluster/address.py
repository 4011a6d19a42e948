"""Find the address of the Ray cluster that a recipe names, and check that something answers there."""

import os
import socket
from importlib.util import find_spec

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.engine import EngineSettings
from fineweb_mask.tasks.registry import stage_names

LOCAL = "local"
"""Ray's name for a cluster of this machine alone, which is started."""
ANSWER_SECONDS = 10.0
"""Time that the cluster's head has to take a connection; Ray itself would try for minutes, and then end the process."""


class ClusterError(SettingsError):
    """Ray is not installed, or the cluster cannot be reached."""


def check_engine(settings: EngineSettings) -> str:
    """Check what can be known of an engine without Ray, and return the cluster's address, or `local`.

    Raises
    ------
    ClusterError
        If Ray is not installed, RAY_ADDRESS is not taken, a setting names a stage that does not exist, or nothing
        listens at the address.
    """
    if find_spec("ray") is None:
        raise ClusterError("engine.kind: ray is not installed: install fineweb-mask with the extra 'ray'")
    if unknown := settings.resources.keys() - set(names := stage_names() if settings.resources else []):
        raise ClusterError(f"engine.resources: no stage {sorted(unknown)[0]!r}, there are {', '.join(names)}")
    address = os.environ.get("RAY_ADDRESS") or LOCAL
    if address == LOCAL:
        return address
    if address == "auto" or "://" in address:
        raise ClusterError(
            f"RAY_ADDRESS: {address!r} is not taken: set it to host:port of the cluster's head, and start the run on a "
            "machine of the cluster"
        )
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise unreachable(address, error) from error
    return address


def unreachable(address: str, error: object) -> ClusterError:
    """Return the error for an address at which no cluster answers."""
    return ClusterError(
        f"RAY_ADDRESS: no Ray cluster answers at {address}: {error}; if it asks for a token, set "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its nodes"
    )
