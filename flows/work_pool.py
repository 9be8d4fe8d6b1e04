"""`python -m flows.work_pool NAME RUNS`: a work pool of processes on this machine, made or kept."""

import asyncio
import sys

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectNotFound


async def main(name: str, runs: int) -> None:
    """Make the pool, or set how many of its runs go on at once: a machine's cores are shared."""
    async with get_client() as client:
        try:
            await client.read_work_pool(name)
        except ObjectNotFound:
            await client.create_work_pool(
                WorkPoolCreate(name=name, type="process", concurrency_limit=runs)
            )
        else:
            await client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=runs))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
