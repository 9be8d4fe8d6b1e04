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
os.environ["XDG_RUNTIME_DIR"] = _RUNTIME.name
