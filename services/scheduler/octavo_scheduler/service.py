"""SchedulerService: tells what the loop does. Steers nothing."""

from __future__ import annotations

from uuid import UUID

import grpc

from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc
from octavo_scheduler.loop import Figures


class SchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Reads the figures of the loop."""

    def __init__(self, process_id: UUID, figures: Figures) -> None:
        self._process_id = process_id
        self._figures = figures

    async def GetStatus(
        self, request: scheduler_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> scheduler_pb2.GetStatusResponse:
        """Tell whether this scheduler places jobs or stands by."""
        return scheduler_pb2.GetStatusResponse(
            id=str(self._process_id),
            placing=self._figures.placing,
            num_queued=self._figures.num_queued,
            num_assigned=self._figures.num_assigned,
        )
