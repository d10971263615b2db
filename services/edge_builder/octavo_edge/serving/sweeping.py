"""Removes the files of builds whose retention time is over. The job table says which; knows no artifacts of stages."""

from __future__ import annotations

import asyncio

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import Unavailable
from octavo_common.store import BuildStore
from octavo_edge.serving.library import Library

log = structlog.get_logger(__name__)


async def sweep(library: Library, store: BuildStore, clock: Clock, *, every_s: float) -> None:
    """Look now and then, for ever."""
    while True:
        try:
            here = await asyncio.to_thread(library.jobs)
            # Read after the folders: a build that begins meanwhile has a row before it has a folder.
            over = set(here) - await store.kept(here)
            for job_id in over:
                await asyncio.to_thread(library.drop, job_id)
                log.info("build.swept", job_id=str(job_id))
        except Unavailable as error:
            log.warning("builds.not_swept", error=error.message)
        except OSError as error:
            log.warning("builds.not_swept", error=str(error))
        await clock.sleep(every_s)
