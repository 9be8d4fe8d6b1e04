"""Shared by all tests."""

import os
import tempfile

from hypothesis import HealthCheck, settings

# The examples are cheap but the machine may be busy: time is no reason to fail.
settings.register_profile(
    "mindcycle",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("mindcycle")

# Trainings take turns on a machine; those of these tests do not wait for others.
_RUNTIME = tempfile.TemporaryDirectory(prefix="mindcycle-tests-")
os.environ["TMPDIR"] = tempfile.tempdir = _RUNTIME.name

# Several of MindSpore's processes that take all cores at once stand in each other's way.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
