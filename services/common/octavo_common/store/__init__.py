"""All that Octavo keeps in Postgres, one class per reader or writer of the tables. The only SQL outside `db/`."""

from octavo_common.store.artifacts import Artifact, ArtifactStore
from octavo_common.store.builds import BuildStore
from octavo_common.store.jobs import JobStore
from octavo_common.store.keys import KeyStore, TenantStore
from octavo_common.store.listener import Listener
from octavo_common.store.placement import PlacementStore
from octavo_common.store.processes import ProcessStore
from octavo_common.store.streams import StreamStore
from octavo_common.store.work import WorkStore

__all__ = [
    "Artifact",
    "ArtifactStore",
    "BuildStore",
    "JobStore",
    "KeyStore",
    "Listener",
    "PlacementStore",
    "ProcessStore",
    "StreamStore",
    "TenantStore",
    "WorkStore",
]
