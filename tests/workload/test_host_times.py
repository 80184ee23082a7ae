"""The host's time per kernel in profiles is the one that results/host derives from timings of layers and steps."""

from __future__ import annotations

import pytest

from simulator.config.load import framework
from simulator.units import US_PER_S

from ..project.source import study_script

made = study_script("host")
FOUND = {found.profile: found for found in made.host_times()}


@pytest.mark.parametrize("profile", FOUND)
def test_profiles_hold_the_measured_time_per_kernel(profile: str) -> None:
    assert framework(profile).host.kernel_s * US_PER_S == pytest.approx(FOUND[profile].kernel_us, abs=0.5)


def test_other_profiles_of_pytorch_take_the_time_of_the_decoder() -> None:
    assert framework("megatron-core-2025").host.kernel_s == framework(made.DECODER).host.kernel_s


@pytest.mark.parametrize("profile", sorted({*FOUND, "megatron-core-2025", "torchtitan-2025"}))
def test_collectives_take_what_was_measured_of_a_call(profile: str) -> None:
    assert framework(profile).host.collective_s * US_PER_S == pytest.approx(made.collective_us(), abs=0.5)


def test_a_host_of_the_decoder_takes_what_was_timed() -> None:
    """The number of kernels times the time per kernel is the mean of the two steps: nothing is counted twice."""
    decoder = FOUND[made.DECODER]
    assert decoder.kernels * decoder.kernel_us / 1e3 == pytest.approx(decoder.here_ms * made.pace())


def test_the_report_is_of_today() -> None:
    report = (made.HERE / "report.md").read_text(encoding="utf-8")
    for found in FOUND.values():
        assert f"| {found.kernels} | {found.kernel_us:.0f} |" in report
    assert f"{made.collective_us():.0f} us for `host.collective`" in " ".join(report.split())
