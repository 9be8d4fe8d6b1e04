"""`mindcycle up`: Prefect's server and user interface, a worker, and every deployment.

All of it ends with this process, whatever ends it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from artifacts.errors import BadInput, StageFailed
from artifacts.writing import write_file_atomically
from flows.crashes import report_crashes
from flows.prefect_server import (
    HERE,
    ServerProcess,
    check_port_free,
    prefect_home,
    running_server,
    set_environment,
    wait_until_up,
)
from flows.stopping import Ended

POOL = "local"
"""The work pool of prefect.yaml; its runs are processes on this machine."""
LOOK_SECONDS = 5.0
"""How soon a run whose process is gone is said to have crashed."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WORKER_GRACE = 20.0
"""Seconds a stopped worker has for its flow runs, whose stages may write a checkpoint first."""


def up(host: str, port: int, runs: int) -> None:
    """Start everything, say where it is, and stay until Ctrl-C or SIGTERM.

    `runs` flow runs go on at once. Raises BadInput before anything is started, StageFailed later.
    """
    if not Path("prefect.yaml").is_file():
        raise BadInput("prefect.yaml: is not here; run this in MindCycle's clone")
    if not host:
        raise BadInput("--host: is ''; an address such as 127.0.0.1 would be right")
    set_environment()
    if url := running_server():
        raise BadInput(f"already up: {url.removesuffix('/api')} serves {prefect_home()}")
    check_port_free(host, port)
    if host not in LOOPBACK:
        print(f"Anyone who reaches {host}:{port} can run flows here: Prefect asks no password.")
    shown = f"[{host}]" if ":" in host else host
    reached = "127.0.0.1" if host == "0.0.0.0" else shown
    url = f"http://{reached}:{port}"
    # The user interface calls the address it was built with, which knows only port 4200.
    environment = {"PREFECT_API_URL": f"{url}/api", "PREFECT_SERVER_UI_API_URL": f"{url}/api"}
    here = prefect_home() / HERE
    started: list[ServerProcess] = []
    try:
        print("Starting Prefect's server (the first time takes half a minute) ...", flush=True)
        prefect = [sys.executable, "-m", "prefect"]
        command = [*prefect, "server", "start", "--host", host, "--port", str(port)]
        server = ServerProcess(command, prefect_home() / "server.log", environment)
        started.append(server)
        wait_until_up(server, f"{url}/api")
        print("Deploying ...", flush=True)
        _run([sys.executable, "-m", "flows.deploying", POOL, str(runs)], environment)
        command = [*prefect, "worker", "start", "--pool", POOL, "--name", "mindcycle-up"]
        log = prefect_home() / "worker.log"
        started.append(ServerProcess(command, log, environment, WORKER_GRACE))
        record = {"api_url": f"{url}/api", "pid": os.getpid()}
        write_file_atomically(here, json.dumps(record).encode())
        print(_welcome(url), flush=True)
        _stay(started, f"{url}/api")
    except Ended:
        pass  # told to stop, it has done its work
    finally:
        print("Stopping ...", flush=True)
        here.unlink(missing_ok=True)
        for part in reversed(started):
            part.stop()


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise StageFailed("\n".join([f"{' '.join(command[1:])} failed:", *last]))


def _stay(started: list[ServerProcess], api_url: str) -> None:
    look = 0.0
    while True:
        for part in started:
            if (code := part.process.poll()) is not None:
                raise StageFailed(f"a part ended with exit code {code}; its log is {part.log}")
        if time.monotonic() >= look:
            report_crashes(api_url)
            look = time.monotonic() + LOOK_SECONDS
        time.sleep(0.5)


def _welcome(url: str) -> str:
    return f"""
Prefect is up: {url}     Ctrl-C ends it and everything it started.

In another terminal, in this directory:
  export PREFECT_API_URL={url}/api
  .venv/bin/prefect deployment run 'lifecycle/default' --watch
  .venv/bin/prefect deployment run 'pretrain/default' -p 'overrides=["pretrain.steps=100"]'
Schedules are off until you switch them on. Logs: {prefect_home()}"""
