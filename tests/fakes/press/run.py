from typing import Any

from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    text = (job.inputs["corpus"] / "text.txt").read_text() * job.config.times
    (job.work / "pressed.txt").write_text(text)
    return {"letters": len(text)}
