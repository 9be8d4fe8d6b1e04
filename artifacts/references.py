"""What a user may call an artifact: `latest`, a channel, a directory, or digits of its digest."""

from pathlib import Path

from artifacts.channels import CHANNELS, channel_name, standing
from artifacts.errors import BadInput
from artifacts.store import check_store, find_artifact, list_artifacts

LATEST = "latest"
"""What the newest release of a store is called."""


def find_named(reference: str, store: Path) -> Path:
    """The artifact of that name; a directory of the name goes first.

    Raises BadInput if there is none.
    """
    if Path(reference).exists() or reference not in (LATEST, *CHANNELS):
        return find_artifact(store, reference)
    check_store(store)
    if reference == LATEST:
        releases = [path for path, made in list_artifacts(store, []) if made.kind == "release"]
        if not releases:
            raise BadInput(f"{LATEST}: {store} holds no release; mindcycle run makes one")
        return releases[-1]
    path = standing(store, channel_name(reference))
    if path is None:
        raise BadInput(
            f"{reference}: nothing stands there in {store}; "
            f"mindcycle promote RELEASE --to {reference} would change that"
        )
    return path
