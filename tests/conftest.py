"""Shared by all tests."""

import os

from hypothesis import HealthCheck, settings

# The examples are cheap but the machine may be busy: time is no reason to fail.
settings.register_profile(
    "mindcycle",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("mindcycle")
