"""One way from words to a GPU, in every command; where memory counts, of the memory that the words say."""

from __future__ import annotations

from pathlib import Path

import pytest

import simulator as sim
from simulator.config import catalog, shipped_fits
from simulator.config.catalog import gpu_named, unambiguous_gpu
from simulator.errors import UserError

from ..commandline import SMALL, trainsim

SPELLINGS = [
    ("H200-SXM", "h200"),
    ("B300-SXM", "b300"),
    ("A100-SXM-80", "a100-80gb"),
    ("RTX PRO 6000", "rtx-pro-6000"),
    ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
    ("a40-pcie", "a40"),
    ("GH200", "gh200-96gb"),
    ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ("NVIDIA RTX A6000", "a6000"),
    ("AMD Instinct MI250X", "mi250x"),
    ("V100-SXM2-16GB", "v100-16gb"),
]


@pytest.mark.parametrize("words, name", SPELLINGS)
def test_every_command_knows_a_gpu_by_all_its_names(words: str, name: str) -> None:
    record = trainsim("kernel", "add", "--gpu", words, "-m", 8192, "-n", 8192, "--dtype", "fp16", "--json").record
    assert record["gpu"] == name
    assert sim.cluster("dgx-h100", gpu=words).gpu.name == name


@pytest.mark.parametrize(
    "words, near", [("A100", "a100-40gb or a100-80gb"), ("V100", "v100-16gb or v100-32gb"), ("A100-PCIE", "a100-pcie-40gb or")]
)
def test_a_run_takes_no_gpu_of_other_memory_than_was_said(words: str, near: str) -> None:
    """The kernels of one V100 are those of another; its memory is not."""
    assert gpu_named(words).startswith(near[:4])
    with pytest.raises(UserError) as refused:
        sim.cluster("dgx-h100", gpu=words)
    assert near in refused.value.hint
    with pytest.raises(UserError):
        unambiguous_gpu(words)


@pytest.mark.parametrize("words", ["gtx1080", "hopper100", "NVIDIA"])
def test_nothing_is_suggested_that_is_written_otherwise(words: str) -> None:
    with pytest.raises(UserError) as refused:
        gpu_named(words)
    assert "did you mean" not in refused.value.hint
    assert "h100" in refused.value.hint


def test_a_file_is_suggested_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("memory: 80 GiB\n")
    monkeypatch.chdir(tmp_path)
    said = trainsim("kernel", "add", "--gpu", "mine", "-m", 1, "-n", 1)
    assert (said.code, "did you mean 'mine.yaml'?" in said.err) == (2, True)


def test_a_summary_names_the_gpu_unless_the_cluster_does(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    lines = [trainsim("run", file, *more).out.splitlines()[2] for more in ((), ("--set", "cluster.gpu=h200"))]
    assert [line.partition("GPUs: ")[2] for line in lines] == ["2 x dgx-h100", "2 x dgx-h100 of h200"]


def test_a_file_of_ones_own_is_read_each_time(tmp_path: Path) -> None:
    """Whoever edits it while a notebook runs gets what stands in it now; what ships is read once."""
    file = tmp_path / "mine.yaml"
    text = catalog.find("gpus", "h100").read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    assert shipped_fits.gpu(str(file)).sms == 132
    file.write_text(text.replace("sms: 132", "sms: 114"), encoding="utf-8")
    assert shipped_fits.gpu(str(file)).sms == 114
    assert shipped_fits.gpu("h100") is shipped_fits.gpu("h100")


def test_a_gpu_that_is_asked_for_is_no_cluster(tmp_path: Path) -> None:
    """Its file holds a GPU: no key of a cluster is proposed in its place."""
    file = tmp_path / "mine.yaml"
    file.write_text(catalog.find("gpus", "h100").read_text(encoding="utf-8") + "gpus_per_node: 8\n", encoding="utf-8")
    with pytest.raises(UserError) as refused:
        shipped_fits.gpu(str(file))
    (fault,) = refused.value.faults
    assert "gpus_per_node: unknown key" in fault.message
    assert fault.hint.startswith("known: architecture, ")
