"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("house", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
