"""Blobs by digest: tokenizer bundles now. Knows nothing of what is in them."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from octavo_common.db.tables import artifacts
from octavo_common.errors import NotFound
from octavo_common.store.base import Store


class Artifact(NamedTuple):
    """A blob and what it is."""

    media_type: str
    data: bytes


class ArtifactStore(Store):
    """Content-addressed blobs of up to some megabytes."""

    async def put(self, digest: str, media_type: str, data: bytes) -> None:
        """Store a blob; nothing happens when its digest is there already."""
        row = {"digest": digest, "media_type": media_type, "data": data}
        await self._run(insert(artifacts).values(row).on_conflict_do_nothing())

    async def has(self, digest: str) -> bool:
        """True when the blob is there."""
        return bool(await self._run(select(artifacts.c.digest).where(artifacts.c.digest == digest)))

    async def get(self, digest: str) -> bytes:
        """Read a blob's data. Raises NotFound."""
        return (await self.read(digest)).data

    async def read(self, digest: str) -> Artifact:
        """Read a blob with its media type. Raises NotFound."""
        statement = select(artifacts.c.media_type, artifacts.c.data).where(artifacts.c.digest == digest)
        rows = await self._run(statement)
        if not rows:
            raise NotFound(f"there is no artifact {digest}")
        return Artifact(media_type=rows[0].media_type, data=bytes(rows[0].data))
