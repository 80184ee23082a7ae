"""PyTorch's traces become tables: one written by hand, to the last number, and one that torch writes (slow)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import UserError
from simulator.measurements.kernel_table import Measured, rows_of
from simulator.measurements.kernel_words import Probe
from simulator.measurements.torch_trace import trace_table
from simulator.measurements.torch_trace.events import Op
from simulator.measurements.torch_trace.operators import operator_of, probe_of
from simulator.measurements.torch_trace.trace_table import COLLECTIVE, UNMATCHED

from ..commandline import trainsim

BF16 = "c10::BFloat16"


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": named}


def op(name: str, ts: float, dur: float, number: int, dims: list[Any], tid: int = 1, **more: Any) -> dict[str, Any]:
    tensors = {"Input_Dims": dims, "Input_type": [BF16 if shape else "" for shape in dims]}
    return event("cpu_op", name, ts, dur, tid, External_id=number, **tensors, **more)


def launch(ts: float, correlation: int, tid: int = 1) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", ts, 2, tid, correlation=correlation)


def kernel(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return event("kernel", name, ts, dur, 7, **args)


HEADS, KEYS = [2, 16, 512, 64], [2, 4, 512, 64]
SDPA = "aten::_scaled_dot_product_flash_attention"
EVENTS: list[dict[str, Any]] = [
    # a linear layer called twice; the second time split, with a kernel that adds the parts up
    op("aten::linear", 0, 50, 1, [[2, 512, 1024], [4096, 1024]]),
    op("aten::addmm", 5, 40, 2, [[4096], [1024, 1024], [1024, 4096]]),
    launch(10, 100),
    kernel("nvjet_hsh_128x256", 100, 30, External_id=2, correlation=100),
    op("aten::addmm", 60, 40, 3, [[4096], [1024, 1024], [1024, 4096]]),
    launch(62, 101),
    launch(66, 102),
    kernel("nvjet_hsh_splitK", 140, 40, External_id=3, correlation=101),
    kernel("splitKreduce_kernel", 180, 4, External_id=3, correlation=102),
    # its backward pass, on the thread of autograd: the gradient of the weight reads its first operand across the rows
    op("MmBackward0", 200, 60, 4, [], 2),
    op("aten::mm", 205, 20, 5, [[1024, 4096], [4096, 1024]], 2, Input_Strides=[[4096, 1], [1024, 1]]),
    launch(210, 103, 2),
    kernel("nvjet_hsh_dgrad", 250, 31, External_id=5, correlation=103),
    op("aten::mm", 230, 20, 6, [[4096, 1024], [1024, 1024]], 2, Input_Strides=[[1, 4096], [1024, 1]]),
    launch(235, 104, 2),
    kernel("nvjet_hsh_wgrad", 290, 33, External_id=6, correlation=104),
    # attention: the kernel names an inner operator, whose caller has the shapes
    op(SDPA, 300, 40, 7, [HEADS, KEYS, KEYS, [], []], Concrete_Inputs=["", "", "", "0.", "True", "False", ""]),
    op("aten::_flash_attention_forward", 305, 30, 8, [[2, 512, 16, 64]] * 3),
    launch(310, 105),
    kernel("pytorch_flash::flash_fwd_kernel", 350, 20, External_id=8, correlation=105),
    # a norm that is four kernels, found by its launches alone
    op("aten::rms_norm", 400, 50, 9, [[2, 512, 1024], [], [1024]]),
    op("aten::mul", 405, 5, 10, [[2, 512, 1024], [1024]]),
    launch(406, 106),
    op("aten::mean", 415, 5, 11, [[2, 512, 1024]]),
    launch(416, 107),
    kernel("vectorized_elementwise_kernel", 450, 3, correlation=106),
    kernel("reduce_kernel", 455, 5, correlation=107),
    # collectives: one tells its size by itself, one by the operator that records it
    kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 500, 200,
        Collective_name="allreduce", In_msg_nelems=1048576, Out_msg_nelems=1048576, Group_size=8, dtype="BFloat16",
    ),
    event(
        "cpu_op", "record_param_comms", 600, 5, External_id=12, Collective_name="_allgather_base", In_msg_nelems=1024,
        Out_msg_nelems=8192, Group_size=8, dtype="Float",
    ),
    kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 700, 50, External_id=12),
    # strangers: a kernel of nobody's operator, one of an operator that is none of ours, and a copy
    kernel("my_kernel<int>", 800, 9),
    op("mylib::frobnicate", 810, 20, 13, [[64]]),
    launch(812, 108),
    kernel("frobnicate_gemm_kernel", 850, 11, External_id=13, correlation=108),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 900, 10, 7, bytes=4096, correlation=109),
    {"ph": "i", "cat": "kernel", "name": "no duration", "ts": 1},
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
]  # fmt: skip
WHOLE = {"schemaVersion": 1, "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}], "traceEvents": EVENTS}


def written(path: Path, data: Any = WHOLE) -> Path:
    raw = json.dumps(data).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


EXPECTED = {
    Probe("gemm", "bf16", 1024, 4096, 1024, variant="fwd"): [30, 44],
    Probe("gemm", "bf16", 1024, 1024, 4096, variant="dgrad"): [31],
    Probe("gemm", "bf16", 4096, 1024, 1024, variant="wgrad"): [33],
    Probe("attention_fwd", "bf16", 0, 0, 0, 2, 512, 16, 4, 64, True, "flash_attention by=pytorch"): [20],
    Probe("rmsnorm", "bf16", 1024, 1024): [8],
    Probe("copy", "bf16", 1, 2048, variant="h2d"): [10],
    Probe("unknown", "unknown", variant="my_kernel<int>"): [9],
    Probe("gemm", "unknown", variant="frobnicate_gemm_kernel"): [11],
    Probe("all_reduce", "BFloat16", n=2097152, batch=8, variant="n = bytes, batch = ranks"): [200],
    Probe("all_gather", "Float", n=32768, batch=8, variant="n = bytes, batch = ranks"): [50],
}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_gives_the_kernels_with_their_shapes_and_times(tmp_path: Path, name: str) -> None:
    found = trace_table.read(written(tmp_path / name))
    entries = {entry.probe: entry for entry in (*found.entries, *found.collectives)}
    assert {probe: entry.times_us for probe, entry in entries.items()} == EXPECTED
    roles = {probe.op + probe.variant: entry.role for probe, entry in entries.items() if entry.role != "fit"}
    assert roles == {
        "copyh2d": UNMATCHED,
        "unknownmy_kernel<int>": UNMATCHED,
        "gemmfrobnicate_gemm_kernel": UNMATCHED,
        "all_reducen = bytes, batch = ranks": COLLECTIVE,
        "all_gathern = bytes, batch = ranks": COLLECTIVE,
    }
    assert (found.gpu, found.device) == ("NVIDIA H100 80GB HBM3", "cuda")


def test_the_json_has_the_table_the_idle_time_and_what_a_launch_costs(tmp_path: Path) -> None:
    record = trainsim("calibrate", "trace", written(tmp_path / "trace.json"), "--json").record
    first = record["kernels"][0]
    assert first == {
        "name": "aten::addmm", "kernel": "gemm fwd bf16 m=1024 n=4096 k=1024", "op": "gemm", "role": "fit", "calls": 2,
        "median_us": 37.0, "p10_us": pytest.approx(31.4), "p90_us": pytest.approx(42.6), "total_us": 74.0,
    }  # fmt: skip
    assert record["collectives"][0] == {
        "kind": "all_reduce", "dtype": "BFloat16", "bytes": 2097152, "ranks": 8, "calls": 1,
        "median_us": 200.0, "p10_us": 200.0, "p90_us": 200.0, "total_us": 200.0,
    }  # fmt: skip
    total_us = sum(sum(times) for times in EXPECTED.values())
    assert record["span_s"] == pytest.approx(810 / 1e6)
    assert record["busy_fraction"] == pytest.approx(total_us / 810)
    assert record["unmatched_fraction"] == pytest.approx(30 / total_us)
    # one thread launches at 10, 62, 66, 310, 406, 416, 812; the other at 210 and 235
    assert record["launches"] == {"count": 9, "per_s": pytest.approx(9 / 804 * 1e6), "call_us": 2.0, "apart_us": 52.0}


def test_the_table_can_be_fitted_and_drops_nothing(tmp_path: Path) -> None:
    """Rows that match nothing are there, with a role that is not fitted."""
    data = {**WHOLE, "traceEvents": EVENTS + [moved for i in range(1, 9) for moved in shifted(EVENTS[1:4], i)]}
    out = tmp_path / "table.csv"
    said = trainsim("calibrate", "trace", written(tmp_path / "trace.json", data), "--out", out)
    assert "my_kernel<int>" in said.out
    rows = rows_of(out)
    assert {row.probe for row in rows} >= set(EXPECTED) - {p for p in EXPECTED if p.dtype in ("BFloat16", "Float")}
    assert sum(row.seconds * row.runs for row in rows if row.probe.variant == "my_kernel<int>") == pytest.approx(9 / 1e6)
    made = trainsim("calibrate", "fit", out, "--json").record
    assert made["gpu"] == "h100"
    assert [(fit["family"], fit["dtype"], fit["rows"]) for fit in made["fits"]] == [
        ("gemm", "bf16", 11), ("attention", "bf16", 1),
    ]  # fmt: skip
    assert made["unused"]["the role 'unmatched'"] == 3


def shifted(events: list[dict[str, Any]], times: int) -> list[dict[str, Any]]:
    """The same product for more and more tokens, later."""
    found = json.loads(json.dumps(events))
    for event in found:
        event["ts"] += 1000 * times
        for key, step in (("External id", 1000), ("correlation", 1000)):
            if key in event["args"]:
                event["args"][key] += step * times
    found[0]["args"]["Input Dims"][1][0] *= times + 1
    found[2]["dur"] *= times + 1
    return list(found)


def test_a_trace_without_a_gpu_has_its_operators_for_kernels(tmp_path: Path) -> None:
    host = [event for event in EVENTS if event.get("cat") == "cpu_op"]
    found = trace_table.read(written(tmp_path / "trace.json", host))
    assert (found.gpu, found.device, found.launches.count, found.launches.per_s) == ("cpu", "cpu", 0, None)
    times = {entry.probe: entry.times_us for entry in found.entries}
    assert times == {
        Probe("gemm", "bf16", 1024, 4096, 1024, variant="fwd"): [40, 40],
        Probe("gemm", "bf16", 1024, 1024, 4096, variant="dgrad"): [20],
        Probe("gemm", "bf16", 4096, 1024, 1024, variant="wgrad"): [20],
        Probe("attention_fwd", "bf16", 0, 0, 0, 2, 512, 16, 4, 64, True, "flash_attention by=pytorch"): [40],
        Probe("rmsnorm", "bf16", 1024, 1024): [50],
        Probe("unknown", "unknown", variant="record_param_comms"): [5],
        Probe("unknown", "unknown", variant="mylib::frobnicate"): [20],
    }


def test_times_of_the_host_are_not_those_of_a_gpu(tmp_path: Path) -> None:
    host = [event for event in EVENTS if event.get("cat") in ("cpu_op", "cuda_runtime")]
    with pytest.raises(UserError, match="no kernel of a GPU in the trace, whose times could be those of 'h100'"):
        trace_table.read(written(tmp_path / "trace.json", host), "h100")


def test_durations_keep_their_digits_beside_a_clock_that_counts_from_1970(tmp_path: Path) -> None:
    sooner = [{**one, "dur": one["dur"] + 0.11} if "dur" in one else one for one in EVENTS]
    later = [{**one, "ts": one["ts"] + 1.683e15} if "ts" in one else one for one in sooner]
    found, plain = (
        trace_table.read(written(tmp_path / f"{i}.json", {**WHOLE, "traceEvents": events}))
        for i, events in enumerate((later, sooner))
    )
    for one, other in zip(found.entries, plain.entries, strict=True):
        assert one.probe == other.probe
        assert one.times_us == pytest.approx(other.times_us, rel=1e-9)


def test_a_call_of_several_operators_says_so(tmp_path: Path) -> None:
    """A norm of two; a product whose parts a second kernel adds up is one operator still."""
    found = trace_table.read(written(tmp_path / "trace.json"))
    assert {entry.probe.op: entry.operators for entry in found.entries if entry.role == "fit"} == {
        "gemm": 1, "attention_fwd": 1, "rmsnorm": 2,
    }  # fmt: skip
    rows = {row.probe.op: row for row in trace_rows(tmp_path)}
    assert (rows["rmsnorm"].is_eager, rows["gemm"].is_eager, rows["unknown"].operators) == (True, False, None)


def trace_rows(tmp_path: Path) -> list[Measured]:
    trainsim("calibrate", "trace", tmp_path / "trace.json", "--out", tmp_path / "table.csv")
    return rows_of(tmp_path / "table.csv")


def test_times_in_quotes_are_numbers(tmp_path: Path) -> None:
    """As some versions of the profiler write them."""
    plain = trace_table.read(written(tmp_path / "plain.json"))
    quoted = [{**e, **{key: str(e[key]) for key in ("ts", "dur") if key in e}} for e in EVENTS]
    odd: list[Any] = ["soon", "nan", None, [], True, 1e300, "-inf"]
    strange = [{**EVENTS[0], "ts": value} for value in odd] + [{**EVENTS[3], "dur": value} for value in (-5, "inf", False)]
    assert trace_table.read(written(tmp_path / "quoted.json", {**WHOLE, "traceEvents": quoted + strange})) == plain


def process(events: list[dict[str, Any]], host: int, device: int, later_us: float) -> list[dict[str, Any]]:
    """The events of another process, with the same numbers for its operators and launches."""
    found: list[dict[str, Any]] = json.loads(json.dumps(events))
    for event in found:
        on_gpu = event["cat"].startswith(("kernel", "gpu"))
        event["pid"], event["ts"] = device if on_gpu else host, event["ts"] + later_us
        if on_gpu:
            event["args"]["device"] = device
    return found


@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_processes_that_count_alike_are_told_apart(tmp_path: Path, devices: tuple[int, int]) -> None:
    """The second runs another shape; whichever stands first in the file."""
    first = process(EVENTS[1:4], 4000, devices[0], 0)
    second = process(EVENTS[1:4], 4001, devices[1], 3000)
    second[0]["args"]["Input Dims"][1] = [2048, 1024]
    for events in (first + second, second + first):
        found = trace_table.read(written(tmp_path / "trace.json", events))
        assert {entry.probe.m: entry.times_us for entry in found.entries} == {1024: [30], 2048: [30]}


def test_a_kernel_that_says_its_process_needs_no_time_to_tell(tmp_path: Path) -> None:
    """Both at once."""
    first, second = (process(EVENTS[1:4], host, 0, 0) for host in (4000, 4001))
    second[0]["args"]["Input Dims"][1] = [2048, 1024]
    first[2]["pid"], second[2]["pid"] = 4000, 4001
    second[2]["dur"] = 60
    found = trace_table.read(written(tmp_path / "trace.json", first + second))
    assert {entry.probe.m: entry.times_us for entry in found.entries} == {1024: [30], 2048: [60]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"traceEvents": [\n{"ph": }]}', r"trace.json:2:8: not JSON"),
        ("{}", "no list of traceEvents"),
        ('{"traceEvents": [{"ph": "X"}]}', "no operator and no kernel among 1 events"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(UserError) as caught:
        trace_table.read(tmp_path / "trace.json")
    assert words in str(caught.value)


def test_a_broken_archive_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "trace.json.gz").read_bytes()
    (tmp_path / "trace.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bent.json.gz").write_bytes(whole[:20] + bytes(40) + whole[60:])
    for name in ("trace.json.gz", "bent.json.gz", "nothing.json"):
        assert trainsim("calibrate", "trace", tmp_path / name).code == 2


# What operators and kernels are called ---------------------------------------------------------------------------------------

PACKED, STARTS = [4096, 16, 128], [5]
DENSE = [4, 1024, 16, 128]
ATTENTION = (0, 0, 0, 4, 1024, 16, 16, 128, True)


def one(name: str, dims: list[Any], concrete: list[str] | None = None, types: list[str] | None = None) -> Probe | None:
    """What an operator alone is."""
    args = {"Input Dims": dims, "Input type": types or [BF16 if shape else "" for shape in dims]}
    return probe_of(Op(name, 0, 1, {**args, "Concrete Inputs": concrete or []}))


def packed(tensors: int, before: int, longest: int) -> tuple[list[Any], list[str]]:
    """Arguments of attention over four packed sequences: tensors, absent ones, starts, then the longest and the mask."""
    dims = [PACKED] * tensors + [[]] * before + [STARTS, STARTS]
    return dims, [""] * len(dims) + [str(longest), str(longest), "0.0884", "True", "-1"]


@pytest.mark.parametrize(
    ("name", "op", "tensors", "before", "library"),
    [
        ("flash_attn::_flash_attn_varlen_forward", "attention_fwd", 3, 0, "flash_attention"),
        ("flash_attn::_flash_attn_varlen_backward", "attention_bwd", 5, 0, "flash_attention"),
        ("flash_attn_3::fwd", "attention_fwd", 3, 4, "fa3"),
        ("flash_attn_3::bwd", "attention_bwd", 5, 0, "fa3"),
    ],
)
def test_attention_of_flash_attn_has_its_shape_packed_or_not(name: str, op: str, tensors: int, before: int, library: str) -> None:
    """Packed sequences of several lengths are no one shape."""
    assert one(name, *packed(tensors, before, 1024)) == Probe(op, "bf16", *ATTENTION, f"{library} by=pytorch")
    assert one(name, *packed(tensors, before, 2048)) is None
    dense = name.replace("varlen_", "")
    assert one(dense, [DENSE] * tensors, [""] * tensors + ["0.0884", "True", "-1"]) == Probe(
        op, "bf16", *ATTENTION, f"{library} by=pytorch"
    )


def test_grouped_products_have_the_shape_of_one_group() -> None:
    tokens, weight, gradient = [4096, 1024], [8, 1024, 512], [4096, 512]
    assert one("aten::_grouped_mm", [tokens, weight, [8]]) == Probe("grouped_gemm", "bf16", 512, 512, 1024, 8, variant="fwd")
    wgrad = one("aten::_grouped_mm", [[1024, 4096], gradient, [8]])
    assert wgrad == Probe("grouped_gemm", "bf16", 1024, 512, 512, 8, variant="wgrad")
    assert one("aten::_grouped_mm", [tokens, weight, []]) is None
    whole = one("aten::_scaled_grouped_mm", [tokens, weight, [], [], [8]], types=["c10::Float8_e4m3fn"] * 2)
    assert whole == Probe("grouped_gemm", "fp8", 512, 512, 1024, 8, variant="fwd")


@pytest.mark.parametrize(
    ("word", "scales", "dtype", "k"),
    [
        ("Float4_e2m1fn_x2", "Float8_e4m3fn", "nvfp4", 2048),
        ("Float4_e2m1fn_x2", "Float8_e8m0fnu", "mxfp4", 2048),
        ("Float8_e4m3fn", "Float8_e8m0fnu", "mxfp8", 1024),
        ("Float8_e4m3fn", "float", "fp8", 1024),
    ],
)
def test_narrow_products_tell_their_format_and_count_elements_not_bytes(word: str, scales: str, dtype: str, k: int) -> None:
    types = [f"c10::{word}", f"c10::{word}", scales if scales == "float" else f"c10::{scales}"]
    made = one("aten::_scaled_mm", [[512, 1024], [1024, 4096], [512, 64]], types=types)
    assert made == Probe("gemm", dtype, 512, 4096, k, variant="fwd")


def test_a_table_of_words_that_is_no_matrix_is_no_shape() -> None:
    assert one("aten::embedding", [[2, 100, 64], [4, 16]]) is None


def test_a_shape_with_less_than_nothing_is_no_shape() -> None:
    assert one("aten::embedding", [[100, 64], [4, 16]]) is not None
    assert one("aten::embedding", [[-100, -64], [4, 16]]) is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1", "attention_fwd"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1", "attention_bwd"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(...)", "attention_bwd"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)", "attention_fwd"),
        ("fmha_cutlassB_bf16_aligned_128x64_k128_sm80", "attention_bwd"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention_bwd"),
        ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<...>", "attention_fwd"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...> > >", "attention_fwd"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<...> > >", "attention_bwd"),
        ("void cutlass::device_kernel<flash::FlashAttnBwdPostprocessConvertdQ<...> >", "attention_bwd"),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>", "rmsnorm"),
        ("void transformer_engine::normalization::rmsnorm_bwd_finalize_tuned_kernel<...>", "rmsnorm_bwd"),
        ("void transformer_engine::normalization::ln_bwd_tuned_kernel<...>", "layernorm_bwd"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>", "layernorm"),
        ("void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<...>", "layernorm_bwd"),
        ("void scaled_upper_triang_masked_softmax_warp_backward<...>", "softmax_bwd"),
        ("void softmax_warp_forward<float, c10::BFloat16, float, 10, false, false>", "softmax"),
        ("void at::native::cunn_SoftMaxForward<4, float, float, float, at::native::LogSoftMaxForwardEpilogue>", "cross_entropy"),
        ("void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>", "rope"),
        ("void transformer_engine::fused_rope_backward_kernel<__nv_bfloat16>", "rope_bwd"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm"),
        ("multi_tensor_apply_kernel<..., FusedAdamMathFunctor<...>>", "adam"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_transpose_2", ""),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", ""),
    ],
)
def test_kernels_are_named_with_their_direction(name: str, family: str) -> None:
    assert operator_of(name) == family


@pytest.mark.parametrize(
    ("name", "operator", "dims", "kind", "payload_bytes"),
    [
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "symm_mem::multimem_all_reduce_", [[512, 1024]], "all_reduce", 2**20),
        ("one_shot_all_reduce_kernel<...>", "symm_mem::one_shot_all_reduce_copy", [[4096], [1024]], "all_reduce", 2048),
        ("multimem_all_gather_kernel<16>", "symm_mem::multimem_all_gather_out", [[512], [], [4096]], "all_gather", 8192),
    ],
)
def test_kernels_that_reach_into_their_peers_memory_are_collectives(
    tmp_path: Path, name: str, operator: str, dims: list[Any], kind: str, payload_bytes: int
) -> None:
    events = [op(operator, 0, 20, 1, dims), launch(5, 100), kernel(name, 50, 30, External_id=1, correlation=100)]
    (entry,) = trace_table.read(written(tmp_path / "trace.json", events)).collectives
    assert (entry.probe.op, entry.probe.n, entry.times_us) == (kind, payload_bytes, [30])


@pytest.mark.slow
@pytest.mark.torch
def test_a_trace_of_torch_on_cpu_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here: make torch")
    functional = torch.nn.functional
    layer, table = torch.nn.Linear(64, 128), torch.nn.Embedding(100, 64)
    optimizer = torch.optim.AdamW([*layer.parameters(), *table.parameters()], fused=True)
    words = torch.randint(0, 100, (4, 16))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(3):
            x = table(words)
            q = x.view(4, 4, 16, 16)
            mixed = functional.scaled_dot_product_attention(q, q, q, is_causal=True).reshape(4, 16, 64)
            y = functional.gelu(layer(functional.layer_norm(mixed, (64,))))
            functional.cross_entropy(functional.rms_norm(y, (128,)).view(64, 128), words.view(64)).backward()
            optimizer.step()
            optimizer.zero_grad()
    profiler.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    found = trace_table.read(tmp_path / "trace.json.gz")
    calls = {entry.probe: len(entry.times_us) for entry in found.entries if entry.role == "fit"}
    parameters = 64 * 128 + 128 + 100 * 64
    for probe in (
        Probe("gemm", "fp32", 64, 128, 64, variant="fwd kernel"),
        Probe("gemm", "fp32", 64, 64, 128, variant="dgrad"),
        Probe("gemm", "fp32", 128, 64, 64, variant="wgrad"),
        Probe("attention_fwd", "fp32", 0, 0, 0, 4, 16, 4, 4, 16, True, "flash_attention by=pytorch"),
        Probe("attention_bwd", "fp32", 0, 0, 0, 4, 16, 4, 4, 16, True, "flash_attention by=pytorch"),
        Probe("elementwise", "fp32", 64, 128, variant="gelu"),
        Probe("layernorm", "fp32", 64, 64),
        Probe("rmsnorm", "fp32", 64, 128),
        Probe("embedding", "fp32", 64, 64, 100),
        Probe("cross_entropy", "fp32", 64, 128),
        Probe("adam", "fp32", 1, parameters),
    ):
        assert calls[probe] == 3, probe
    strange_s = sum(entry.total_s for entry in found.entries if entry.role == UNMATCHED)
    assert 0 < strange_s < found.span_s
    assert 0 < found.busy_s <= found.span_s
