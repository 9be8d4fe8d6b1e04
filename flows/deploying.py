"""`python -m flows.deploying POOL RUNS`: the work pool and every deployment of prefect.yaml.

Deploying again changes what has changed in the file and nothing else: a schedule that somebody has
switched on stays on.
"""

import asyncio
import subprocess
import sys

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.exceptions import ObjectNotFound


async def main(pool: str, runs: int) -> int:
    """Make or update everything; returns the exit code of Prefect's own deploy command."""
    async with get_client() as client:
        await make_pool(client, pool, runs)
        before = await schedules(client)
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        code = subprocess.run(command, check=False).returncode
        # Prefect takes `active: false` of the file for a command; here it is where things begin.
        for key, schedule in (await schedules(client)).items():
            if key in before and before[key].active and not schedule.active:
                deployment = schedule.deployment_id
                assert deployment is not None
                await client.update_deployment_schedule(deployment, schedule.id, active=True)
    return code


async def make_pool(client: PrefectClient, name: str, runs: int) -> None:
    """A pool of processes on the worker's machine, of which `runs` go on at once."""
    try:
        await client.read_work_pool(name)
    except ObjectNotFound:
        pool = WorkPoolCreate(name=name, type="process", concurrency_limit=runs)
        await client.create_work_pool(pool)
    else:
        await client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=runs))


async def schedules(client: PrefectClient) -> dict[tuple[str, str], DeploymentSchedule]:
    """Every schedule that has a name of its own: (deployment's id, name) -> schedule."""
    return {
        (str(deployment.id), schedule.slug): schedule
        for deployment in await client.read_deployments()
        for schedule in deployment.schedules
        if schedule.slug
    }


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
