import os
import signal
import subprocess
import sys
import time
from typing import Any

from artifacts.errors import BadInput
from stages.spec import Job

# Ignores SIGTERM, has left the session, and its parent is about to end: the hardest to find.
ORPHAN = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "print(f'orphan {os.getpid()}', flush=True)\n"
    "time.sleep(300)\n"
)


def run(job: Job) -> dict[str, Any]:
    config = job.config
    for i in range(config.lines):
        print(f"line {i}")
    if config.mode == "fail":
        raise RuntimeError("the roots are dry")
    if config.mode == "refuse":
        raise BadInput("text: is no seed; write one", "lines: are too few; write more")
    if config.mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.mode == "breed":
        subprocess.run([sys.executable, "-c", ORPHAN], check=True)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    if config.mode in ("breed", "sleep"):
        print(f"leader {os.getpid()}", flush=True)
        time.sleep(300)
    text = config.text + (config.source.read_text() if config.source else "")
    (job.work / "text.txt").write_text(text)
    return {"letters": len(text)}
