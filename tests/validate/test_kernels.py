"""Rows of a table of kernels: predicted like kernels asked for by themselves, and like those of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.config import shipped_fits
from simulator.kernels import Rowwise
from simulator.measurements.kernel_table import rows_of
from simulator.measurements.kernel_words import FORWARD_ONLY, PASSES, bytes_per_element, workload_name
from simulator.program.operations import Compute
from simulator.validate import kernels, report

from ..commandline import SMALL, trainsim

HEAD = kernels.READS
PLAIN = {"gpu": "H100-SXM", "dtype": "bf16", "m": "8192", "n": "8192"}
ATTENTION = {"gpu": "H100-SXM", "op": "attention_fwd", "dtype": "bf16", "batch": "1", "seq": "8192", "heads": "32"}
ATTENTION |= {"kv_heads": "8", "head_dim": "128", "causal": "1"}
EXPERTS = {"gpu": "B200", "op": "moe_ffn", "dtype": "fp8", "m": "4096", "n": "4096", "k": "4096", "batch": "128"}


def judged(*rows: dict[str, str]) -> list[report.ComparedRow]:
    return list(report.compare_rows(kernels, [dict.fromkeys(HEAD, "") | row for row in rows], "table").rows)


def predicted(**row: str) -> float:
    (one,) = judged(row)
    assert one.predicted is not None, one.skipped
    return one.predicted


def asked(op: str, dtype: str = "bf16", *more: object) -> float:
    record = trainsim("kernel", op, "--gpu", "h100", "--dtype", dtype, "-m", 8192, "-n", 8192, *more, "--json").record
    return float(record["time_us"])


@pytest.mark.parametrize("model", ["{layers: 8, hidden: 1024, heads: 16, vocab: 32000}", "llama3-8b"])
def test_memory_bound_operators_move_what_they_do_in_a_run(model: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SMALL.replace("{layers: 8, hidden: 1024, heads: 16, vocab: 32000}", model))
    bodies = sim.load(file).simulate(allow_oom=True).program.bodies.values()
    found = {op.kernel for body in bodies for op in body.ops if isinstance(op, Compute) and isinstance(op.kernel, Rowwise)}
    known = {kernel for kernel in found if workload_name(kernel.op) in PASSES}
    assert {"adam", "add", "cross_entropy", "embedding_backward"} <= {kernel.op for kernel in known}
    for kernel in known:
        each = bytes_per_element(workload_name(kernel.op), "bf16", backward=kernel.op.endswith("_backward"))
        assert kernel.bytes_per_element == each, kernel.op


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp8"])
@pytest.mark.parametrize("op", sorted({*PASSES, "swiglu", "quantize", "memcpy", "adamw"} - {"gelu"}))
def test_a_row_is_predicted_as_the_kernel_that_it_names(op: str, dtype: str) -> None:
    eager = () if workload_name(op) in kernels.FUSED else ("--eager",)
    assert predicted(**{**PLAIN, "op": op, "dtype": dtype}) == pytest.approx(asked(op, dtype, *eager))


@pytest.mark.parametrize("op", ["swiglu", "geglu", "rmsnorm", "rope", "silu", "cross_entropy", "layernorm", "gelu", "softmax"])
def test_a_backward_pass_takes_no_less_than_its_forward_one(op: str) -> None:
    """But for the walk along a row, which only forward kernels are said to take: here one part in 10^5 of rope."""
    assert predicted(**PLAIN, op=f"{op}_bwd") >= 0.9999 * predicted(**PLAIN, op=op)


@pytest.mark.parametrize("op", FORWARD_ONLY)
def test_what_has_no_backward_pass_is_skipped(op: str) -> None:
    (row,) = judged({**PLAIN, "op": f"{op}_bwd"})
    assert (row.predicted, row.skipped) == (None, f"{op} has no backward pass")


def test_elements_of_half_a_byte_weigh_half_a_byte() -> None:
    wide, narrow = (predicted(**{**PLAIN, "gpu": "B200", "dtype": dtype}, op="add") for dtype in ("fp8", "nvfp4"))
    assert 0.5 < narrow / wide < 0.65


def test_copies_within_the_gpu_and_others() -> None:
    rows = judged(*({**PLAIN, "op": "copy", "variant": words} for words in ("", "d2d", "h2d")))
    assert rows[0].predicted == rows[1].predicted is not None
    assert rows[2].skipped == "op: 'copy' as 'h2d' is not a kernel of the workload"


def test_whether_attention_is_causal_in_other_words() -> None:
    causal = [predicted(**{**ATTENTION, "causal": word}) for word in ("1", "1.0", "True", "true", "yes", "causal")]
    full = [predicted(**{**ATTENTION, "causal": word}) for word in ("0", "0.0", "False", "no", "full")]
    assert len({*causal}) == len({*full}) == 1
    assert full[0] > 1.5 * causal[0]
    assert [row.skipped for row in judged({**ATTENTION, "causal": ""}, {**ATTENTION, "causal": "2"})] == [
        "causal: '' is neither 0 nor 1", "causal: '2' is neither 0 nor 1"
    ]  # fmt: skip


def test_the_fit_reads_the_same_words_for_causal(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    row = "H100,attention_fwd,bf16,1,4096,8,8,128"
    path.write_text(f"gpu,op,dtype,batch,seq,heads,kv_heads,head_dim,causal,time_us\n{row},True,9\n{row},full,9\n{row},,9\n")
    assert [one.probe.causal for one in rows_of(path)] == [True, False, None]


def test_key_heads() -> None:
    assert predicted(**{**ATTENTION, "kv_heads": ""}) == predicted(**{**ATTENTION, "kv_heads": "32"})
    (row,) = judged({**ATTENTION, "heads": "30"})
    assert row.skipped == "30 heads cannot share 8 key heads evenly"


def test_products_of_inference_libraries_were_timed_in_turn() -> None:
    """Their small weights stay in a large cache; a product by itself reads them from memory."""
    shape = {"gpu": "L40S", "op": "gemm", "dtype": "bf16", "m": "16"}
    small, large = {"n": "2048", "k": "2048"}, {"n": "16384", "k": "8192"}
    assert predicted(**shape, **small, variant="TN fwd") < 0.8 * predicted(**shape, **small)
    assert predicted(**shape, **large, variant="TN fwd") == predicted(**shape, **large)


@pytest.mark.parametrize("words", ["flash_attention", "flashinfer", "vllm_flash_attn", "vllm_flashinfer"])
def test_frameworks_take_flash_attention_3_on_hopper(words: str) -> None:
    for gpu in ("H100-SXM", "H200-SXM"):
        third, second = (predicted(**{**ATTENTION, "gpu": gpu}, variant=name) for name in ("FA3", "FA2"))
        assert predicted(**{**ATTENTION, "gpu": gpu}, variant=words) == pytest.approx(third, rel=0.15)
        assert predicted(**{**ATTENTION, "gpu": gpu}, variant=words) < 0.8 * second


def test_attention_is_that_of_ones_own_profile_if_it_has_one_of_that_name(tmp_path: Path) -> None:
    """PyTorch calls FlashAttention 2 `flash_attention`, on Hopper and Blackwell too, and so does `calibrate gpu`."""
    columns = "gpu,op,dtype,m,n,k,batch,seq,heads,kv_heads,head_dim,causal,variant,time_us"
    for gpu in ("h100", "b200"):
        shapes = [(batch, seq, heads) for batch in (1, 2, 4) for seq in (1024, 2048, 4096, 8192) for heads in (8, 16, 32)]
        rows = [
            f"{gpu},attention_fwd,bf16,,,,{b},{s},{h},{h},128,1,flash_attention,{20 + b * h * s**2 / 1.5e6:.2f}"
            for b, s, h in shapes
        ]
        table, profile = tmp_path / f"{gpu}.csv", tmp_path / f"{gpu}.yaml"
        table.write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
        assert trainsim("calibrate", "fit", table, "--out", profile).code == 0
        record = trainsim("validate", "--kind", "kernels", table, "--profile", profile, "--json").record
        assert record["overall"]["median"] < 0.06


def test_frameworks_write_a_cache_before_causal_attention() -> None:
    """Copying keys and values takes at least as long as their bytes; what sees all keys is the kernel alone."""
    kernel_us, framework_us = (predicted(**ATTENTION | {"variant": word}) for word in ("FA3", "fa3"))
    copied_us = 2 * 2 * 2 * 8192 * 8 * 128 / 3.35e12 * 1e6
    assert kernel_us + 0.8 * copied_us < framework_us < kernel_us + 10 * copied_us
    full = ATTENTION | {"causal": "0"}
    assert predicted(**full | {"variant": "FA3"}) == predicted(**full | {"variant": "fa3"})
    backward = ATTENTION | {"op": "attention_bwd"}
    assert predicted(**backward | {"variant": "FA3"}) == predicted(**backward | {"variant": "fa3"})
    assert predicted(**ATTENTION | {"variant": "fa3 by=pytorch"}) == kernel_us
    assert predicted(**ATTENTION | {"variant": "fa3", "cache": "warm"}) == framework_us


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize(
    ("gpu", "word", "bare"), [("H100", "fa3", "FA3"), ("B200", "torch_flow", "cuDNN"), ("L40S", "fa3", "FA3")]
)
def test_a_cache_is_written_in_every_format(gpu: str, word: str, bare: str, dtype: str) -> None:
    row = ATTENTION | {"gpu": gpu, "dtype": dtype}
    assert predicted(**row | {"variant": word}) > predicted(**row | {"variant": bare})


def test_flash_attention_3_however_it_is_written() -> None:
    written = (
        "FA3",
        "fa-3",
        "FlashAttention-3",
        "flash-attention-3",
        "Flash-Attention 3",
        "flash_attn_3",
        "flash-attn3",
        "Flash Attention v3",
    )
    assert len({predicted(**ATTENTION | {"variant": words}) for words in written}) == 1
    assert predicted(**ATTENTION | {"variant": "FA2"}) > 1.3 * predicted(**ATTENTION | {"variant": "FA3"})


def test_pytorch_means_flash_attention_2_and_says_so() -> None:
    """Frameworks mean by the word what runs on the GPU; somebody who writes 2 means 2."""
    for gpu in ("H100", "B200"):
        row = ATTENTION | {"gpu": gpu, "causal": "0"}
        written = {
            word: predicted(**row | {"variant": word}) for word in ("flash_attention", "flash_attention by=pytorch", "FA2")
        }
        assert written["flash_attention"] < written["FA2"] == written["flash_attention by=pytorch"]
        asked_for = (
            "attention",
            "--gpu",
            gpu,
            "--seq",
            8192,
            "--heads",
            32,
            "--kv-heads",
            8,
            "--full",
            "--library",
            "fa2",
            "--json",
        )
        assert float(trainsim("kernel", *asked_for).record["time_us"]) == pytest.approx(written["FA2"])


@pytest.mark.parametrize("words", ["flash-attn-3", "TE cuDNN", "FA3 deterministic", "Triton-FA2", "xformers-cutlass"])
def test_attention_of_ones_own_by_any_name(words: str, tmp_path: Path) -> None:
    """What `calibrate fit` calls a library `validate` finds under the same words."""
    lines = ["gpu,op,dtype,m,n,k,batch,seq,heads,kv_heads,head_dim,causal,variant,time_us"]
    lines += [
        f"H100,attention_fwd,bf16,,,,{b},{s},{h},{h},128,1,{words},{30 + b * h * s**2 / 1.1e6:.2f}"
        for b in (1, 2, 4) for s in (512, 1024, 2048, 4096, 8192) for h in (8, 16, 32)
    ]  # fmt: skip
    table, mine = tmp_path / "table.csv", tmp_path / "mine.yaml"
    table.write_text("\n".join(lines) + "\n")
    assert trainsim("calibrate", "fit", table, "--gpu", "h100", "--out", mine).code == 0
    record = trainsim("validate", "--kind", "kernels", table, "--profile", mine, "--json").record
    assert {row["provenance"] for row in record["rows"]} == {"measured"}
    assert record["overall"]["median"] < 0.1


def test_a_cache_grows_with_the_heads_of_keys_and_turned_queries_with_all() -> None:
    def beside_us(word: str, bare: str, **more: str) -> float:
        return predicted(**ATTENTION | {"variant": word} | more) - predicted(**ATTENTION | {"variant": bare} | more)

    few_us, many_us = (beside_us("fa3", "FA3", kv_heads=heads) for heads in ("8", "32"))
    assert 2 < many_us / few_us < 4
    few_us, many_us = (beside_us("torch_flow", "cuDNN", heads=heads) for heads in ("8", "32"))
    assert many_us > 1.5 * few_us


def test_runs_write_no_cache() -> None:
    asked_for = ("attention", "--gpu", "h100", "--seq", 8192, "--heads", 32, "--kv-heads", 8, "--json")
    assert float(trainsim("kernel", *asked_for).record["time_us"]) == pytest.approx(predicted(**ATTENTION | {"variant": "FA3"}))


def test_unfused_attention_is_not_that_of_a_library() -> None:
    fused, *unfused = (predicted(**ATTENTION, variant=words) for words in ("fa2", "unfused", "math"))
    assert unfused[0] == unfused[1] > 2 * fused


def test_experts() -> None:
    wide, narrow = predicted(**{**EXPERTS, "dtype": "bf16"}, variant="topk8"), predicted(**EXPERTS, variant="topk8")
    assert 1 < wide / narrow < 2.1
    (row,) = judged({**EXPERTS, "variant": "topk300"})
    assert row.skipped == "variant: 'topk300', and there are 128 experts"


def test_rows_say_whose_word_they_are(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    sizes = ("4096,4096,4096", "4000000,4096,4096")
    path.write_text("gpu,op,dtype,m,n,k\n" + "".join(f"{gpu},gemm,bf16,{size}\n" for gpu in ("H100", "L40S") for size in sizes))
    rows = trainsim("validate", "--kind", "kernels", path, "--json").record["rows"]
    assert [(row["provenance"], row["extrapolated"]) for row in rows] == [
        ("measured", False), ("measured", True), ("transferred", False), ("transferred", True)
    ]  # fmt: skip
    said = trainsim("validate", "--kind", "kernels", path).out
    assert "provenance: 2 measured, 2 transferred; 2 beyond the measured sizes" in said
    assert "transferred, beyond the measured sizes" in said


def test_a_table_needs_the_columns_of_its_kernels_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("gpu,op,dtype,m,n,k\nH100,gemm,bf16,4096,4096,4096\nH100,attention_fwd,bf16,1,1,1\n")
    rows = trainsim("validate", "--kind", "kernels", path, "--json").record["rows"]
    assert [row["skipped"] for row in rows] == [None, "batch: '' is not a count"]
    path.write_text("gpu,op,m,n,k\nH100,gemm,4096,4096,4096\n")
    said = trainsim("validate", "--kind", "kernels", path)
    assert (said.code, f"{path}:1: no column 'dtype'" in said.err) == (2, True)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00" + b"x" * 60, b"gpu,op,dtype\n" + b"x" * 2**18], ids=["gzip", "a field"])
def test_a_table_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(content)
    assert trainsim("validate", "--kind", "kernels", path).code == 2


# One's own GPU --------------------------------------------------------------------------------------------------------------

MINE = """\
memory: 80 GiB
memory_bandwidth: 3.35 TB/s
peak: {bf16: 989 TFLOP/s, fp8: 1979 TFLOP/s}
sms: 132
"""


@pytest.fixture
def mine(tmp_path: Path) -> dict[str, Path]:
    """A GPU file, a table of its products, and a profile by which they take a tenth longer than on an H100."""
    (fit,) = [
        fit for fit in shipped_fits.shipped().fits["h100"] if (fit.family, fit.dtype, fit.library) == ("gemm", "bf16", "any")
    ]
    c: Any = fit.constants
    slower = type(fit)("gemm", "bf16", "any", type(c)(**{**_fields(c), "compute": c.compute / 1.1}), 0.05, {}, 30)
    content = {"gpu": MINE, "profile": shipped_fits.text("mine", [slower], "mine")}
    content["table"] = "gpu,op,dtype,m,n,k\nAccelerator 9000,gemm,bf16,8192,8192,8192\nH100,gemm,bf16,8192,8192,8192\n"
    files = {"gpu": tmp_path / "mine.yaml", "profile": tmp_path / "fresh.yaml", "table": tmp_path / "t.csv"}
    for name, text in content.items():
        files[name].write_text(text)
    return files


def _fields(c: Any) -> dict[str, Any]:
    return {name: getattr(c, name) for name in c.__dataclass_fields__}


PRODUCT = ("gemm", "-m", 8192, "-n", 8192, "-k", 8192)


def test_a_gpu_of_ones_own_borrows_what_its_file_leaves_out(mine: dict[str, Path]) -> None:
    made, h100 = (trainsim("kernel", *PRODUCT, "--gpu", gpu, "--json").record for gpu in (mine["gpu"], "h100"))
    assert made["provenance"] == "transferred"
    assert made["time_us"] == pytest.approx(h100["time_us"], rel=0.02)
    gpu = shipped_fits.gpu(str(mine["gpu"]))
    assert (gpu.kernels.provenance, gpu.tdp_w) == ("transferred", 0.0)
    assert gpu.kernels.compute_fraction == shipped_fits.gpu("h100").kernels.compute_fraction


@pytest.mark.parametrize("peak", ["{}", "{fp8: 1979 TFLOP/s}"])
def test_a_gpu_needs_a_peak_that_is_not_narrow(peak: str, mine: dict[str, Path]) -> None:
    path = mine["gpu"].with_name("narrow.yaml")
    path.write_text(MINE.replace("{bf16: 989 TFLOP/s, fp8: 1979 TFLOP/s}", peak))
    said = trainsim("kernel", *PRODUCT, "--gpu", path, "--dtype", "fp8")
    assert said.code == 2
    assert f"{path}:3:" in said.err
    assert "at least one of fp16, bf16, fp32" in said.err


def test_a_profile_can_be_asked(mine: dict[str, Path]) -> None:
    plain, own = (
        trainsim("kernel", *PRODUCT, "--gpu", mine["gpu"], *more, "--json").record
        for more in ((), ("--profile", mine["profile"]))
    )
    assert (own["provenance"], own["model"]) == ("measured", "gemm: bf16 any of mine")
    assert own["time_us"] == pytest.approx(1.1 * plain["time_us"], rel=0.02)
    said = trainsim("kernel", *PRODUCT, "--gpu", "h100", "--profile", mine["profile"])
    assert (said.code, "holds kernels of mine, not of h100" in said.err) == (2, True)


def test_a_profile_can_be_judged(mine: dict[str, Path]) -> None:
    """It speaks for the rows of its GPU, and for no others."""
    own = ("--gpu", mine["gpu"], "--profile", mine["profile"])
    before, after = (
        trainsim("validate", "--kind", "kernels", mine["table"], *more, "--json").record["rows"] for more in ((), own)
    )
    assert before[0]["skipped"] == "no GPU 'Accelerator 9000'"
    asked = trainsim("kernel", *PRODUCT, *own, "--json").record
    assert (after[0]["provenance"], after[0]["predicted"]) == ("measured", asked["time_us"])
    assert before[1] == after[1]


def test_a_profile_of_a_gpu_of_the_catalog_needs_no_name(mine: dict[str, Path]) -> None:
    profile = mine["profile"]
    profile.write_text(profile.read_text().replace("gpu: mine", "gpu: h100"))
    before, after = (
        trainsim("validate", "--kind", "kernels", mine["table"], *more, "--json").record["rows"][1]["predicted"]
        for more in ((), ("--profile", profile))
    )
    assert after == pytest.approx(1.1 * before, rel=0.02)


@pytest.mark.parametrize(
    "kind, args, says",
    [
        ("kernels", ("--profile", "nowhere.yaml"), "no file 'nowhere.yaml'"),
        ("kernels", ("--profile", "fresh.yaml"), "holds kernels of mine, which is in no catalog"),
        ("collectives", ("--gpu", "h100"), "say nothing about collectives"),
    ],
)
def test_what_is_wrong_with_a_profile_is_said(
    kind: str, args: tuple[str, ...], says: str, mine: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine["gpu"].parent)
    said = trainsim("validate", "--kind", kind, mine["table"], *args)
    assert (said.code, says in said.err) == (2, True), said.err
