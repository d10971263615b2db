"""The scheduler's settings."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from octavo_common.settings import CommonSettings


class SchedulerSettings(CommonSettings):
    """OCTAVO_SCHEDULER_* and what all processes read."""

    model_config = SettingsConfigDict(
        env_prefix="OCTAVO_SCHEDULER_", frozen=True, extra="ignore", populate_by_name=True
    )

    # 0 takes any free port; the process announces it.
    port: int = Field(default=0, ge=0, le=65535)
    # Name under which others reach this process; empty: what `host` says.
    advertise_host: str = ""
    # Notifications are only hints: so often the table is read without one. With nothing queued, and no lease near its
    # end, a third of lease_s, if that is longer.
    poll_s: float = Field(default=1.0, gt=0)
    # How often a scheduler that stands by tries to take over.
    standby_poll_s: float = Field(default=0.5, gt=0)
    # Waiting jobs of one model that a round looks at.
    page: int = Field(default=500, ge=1)
    # Ended jobs keep prompt and result so long; after that only figures.
    job_retention_s: float = Field(default=86400.0, ge=0, validation_alias="OCTAVO_JOB_RETENTION")
    prune_every_s: float = Field(default=60.0, gt=0)
