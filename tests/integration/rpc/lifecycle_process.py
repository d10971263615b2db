"""A process for the tests of signals: lifecycle_process.py [endless|busy] [drain_s]. Prints its address when ready."""

from __future__ import annotations

import asyncio
import sys

from rpc_world import Worker

from octavo.v1 import worker_pb2_grpc
from octavo_common.rpc.lifecycle import serve
from octavo_common.rpc.server import make_server


async def main(style: str = "", drain_s: str = "5") -> int:
    server, worker = make_server(), Worker()
    worker.endless = style == "endless"
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)

    async def on_ready(address: str) -> None:
        print(address, flush=True)

    async def on_drain() -> None:
        if style == "busy":
            await asyncio.sleep(60)

    return await serve(server, host="127.0.0.1", port=0, on_ready=on_ready, on_drain=on_drain, drain_s=float(drain_s))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
