from typing import Any

from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    letters = len((job.inputs["pressed"] / "pressed.txt").read_text())
    outcome = "approved" if letters >= job.config.floor else "rejected"
    page = f"# {outcome.capitalize()}\n\n{letters} letters: {outcome}\n"
    (job.work / "decision.md").write_text(page)
    return {"outcome": outcome, "letters": letters}
