"""Any text may be a name: on a terminal, in HTML, in a figure, in CSV and in YAML it is shown and does nothing."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml as pyyaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator import escape
from simulator.commands import _show
from simulator.errors import UserError
from simulator.measurements.kernel_table import line
from simulator.simulation.runnable import RunnableScenario as Scenario

from .commandline import SMALL, Said, trainsim
from .project.source import modules

ANY = st.text(st.characters(), max_size=40)
"""Every character there is, lone surrogates among them."""
HOSTILE = (
    "\x1b]0;PWNED\x07\x1b[31mred\x1b[2J",
    "\x9b31m\u202egnp.exe\u2066",
    "a\rb\nc\td",
    "[red]rich[/red] [/b] :smile:",
    r"$\frac{$",
    "$x^2$",
    "<script>alert(1)</script>",
    "'\"><b>",
    "=cmd|' /C calc'!A0",
    " +1+2",
    "@SUM(1)",
    "_hidden",
    "模型",
    "\ud800",
    "\x7f\x00",
)
SMALL_MODEL = {"layers": 4, "hidden": 512, "heads": 8, "vocab": 1000}


def hostile(law):  # type: ignore[no-untyped-def]
    """A law with every hostile name as an example."""
    for name in HOSTILE:
        law = example(name)(law)
    return law


@hostile
@given(ANY)
def test_on_a_terminal_only_printable_characters_are_left(text: str) -> None:
    shown = escape.terminal(text)
    assert shown.isprintable()
    assert all(part.isprintable() for part in escape.terminal(text, lines=True).split("\n"))
    assert escape.terminal(shown) == shown
    if text.isprintable():
        assert shown == text


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@hostile
@given(ANY)
def test_in_html_text_stays_text(text: str) -> None:
    page = Texts()
    page.feed(f'<p title="{escape.html(text)}">{escape.html(text)}</p>')
    page.close()
    assert page.tags == [("p", [("title", escape.terminal(text))])]
    assert page.text == escape.terminal(text)


@hostile
@given(ANY)
def test_in_a_figure_nothing_is_a_formula(text: str) -> None:
    from matplotlib.text import Text

    shown, is_math = Text(0, 0, escape.figure(text))._preprocess_math(escape.figure(text))  # type: ignore[attr-defined]
    assert not is_math
    assert shown.removeprefix("\u200b") == escape.terminal(text)
    assert not escape.figure(text).startswith("_")


@hostile
@given(ANY)
def test_in_csv_no_cell_is_a_formula_and_each_stands_on_one_line(text: str) -> None:
    written = line([text, "1"])
    assert written.count("\n") == 1
    (row,) = csv.reader(io.StringIO(written))
    assert row[0] in (escape.terminal(text), f"'{escape.terminal(text)}")
    if row[0].lstrip().startswith(("=", "+", "-", "@")):
        assert float(row[0]) <= 0 or row[0].strip().startswith("+")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_in_csv_are_as_they_were(number: float) -> None:
    assert escape.csv_cell(repr(number)) == repr(number)


@hostile
@given(ANY)
def test_in_yaml_text_is_one_scalar(text: str) -> None:
    assert pyyaml.safe_load(f"a: {escape.yaml(text)}\nb: 1\n") == {"a": text, "b": 1}


# Where names leave the program -----------------------------------------------------------------------------------------------


def scenario_named(name: str, folder: Path) -> Path:
    """A scenario whose model, cluster and GPU are called something."""
    file, quoted = folder / "scenario.yaml", escape.yaml(name)
    file.write_text(
        SMALL.replace("{layers: 8", f"{{name: {quoted}, layers: 8").replace(
            "{name: dgx-h100, nodes: 2}",
            f"{{name: {quoted}, gpu: h100, gpus_per_node: 8, nodes: 2, intra_node: NVSwitch 450 GB/s, inter_node: 8x400 Gbit/s}}",
        ),
        encoding="utf-8",
    )
    return file


def is_safe(said: Said) -> bool:
    return all(part.isprintable() for text in (said.out, said.err) for part in text.split("\n"))


NAMES = [name.replace("/", "|") for name in HOSTILE if name.isascii() or name.isprintable()]
"""A slash would make a path of it, and YAML takes no lone surrogate."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NAMES)
def test_any_name_runs_and_is_shown_escaped(name: str, tmp_path: Path) -> None:
    scenario = scenario_named(name, tmp_path)
    said = trainsim("run", scenario, "--costs")
    assert said.code == 0, said.err
    assert is_safe(said)
    assert escape.terminal(name) in said.out
    run = sim.load(scenario).simulate()
    assert all(part.isprintable() for part in repr(run).split("\n"))
    page = Texts()
    page.feed(run._repr_html_())
    assert {tag for tag, _ in page.tags} == {"table", "tr", "th", "td"}
    assert escape.terminal(name) in page.text


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    from simulator.figures.topology_plot import topology_plot

    run = sim.load(scenario_named(name, tmp_path)).simulate()
    switch = "s" + name.replace(">", "")
    gpus = [{"name": "gpu0", "kind": "gpu"}, {"name": "gpu1", "kind": "gpu"}]
    links = [{"from": gpu["name"], "to": switch, "capacity": "50 GB/s", "latency": "1 us"} for gpu in gpus]
    given = {"vertices": [*gpus, {"name": switch, "kind": name}], "links": links}
    drawn = sim.cluster({"name": name, "gpu": "h100", "gpus_per_node": 2, "intra_node": None, "shape": "explicit", **given})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Glyph")  # a font that lacks a character
        for figure in (
            sim.gantt(run),
            topology_plot(run.scenario.cluster),
            topology_plot(drawn),
            topology_plot(drawn, {0: 0.5}, marked={name: [0]}),
        ):  # type: ignore[dict-item]
            figure.savefig(io.BytesIO(), format="svg")


@pytest.mark.parametrize("name", HOSTILE)
def test_any_key_is_told_escaped(name: str, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SMALL.replace("tp: 2", f"{escape.yaml(name)}: 2"), encoding="utf-8")
    said = trainsim("run", file)
    assert said.code == 2
    assert is_safe(said)
    assert trainsim("run", file, "--json").out.isascii()


@pytest.mark.parametrize("args", [
    ("run", "{}"), ("run", "llama3-8b", "--set", "{}=1"), ("schedule", "{}"), ("{}",), ("topology", "{}"), ("flows", "{}"),
    ("calibrate", "links", "{}"), ("catalog", "{}"), ("kernel", "{}", "--gpu", "{}"), ("collective", "{}", "--cluster", "{}"),
    ("validate", "--kind", "{}", "{}"), ("run", "llama3-8b", "--{}"),
], ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("name", [HOSTILE[0], HOSTILE[1]])
def test_any_argument_is_told_escaped(args: tuple[str, ...], name: str) -> None:
    said = trainsim(*(arg.format(name) for arg in args))
    assert said.code == 2
    assert is_safe(said)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@hostile
@settings(max_examples=25, deadline=None)
@given(ANY)
def test_tables_of_a_terminal_show_markup_as_it_is(name: str) -> None:
    out, was = Terminal(), sys.stdout
    sys.stdout = out
    try:
        _show.print_table([name], [[name]], title=name)
        _show.print_pairs([(name, name)])
        _show.print_json({"name": name})
    finally:
        sys.stdout = was
    *table, pairs, record = out.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").rstrip("\n").split("\n")
    assert all(part.isprintable() for part in (*table, pairs, record))
    assert json.loads(record) == {"name": name}
    if name.isprintable() and name.strip() and len(name) < 30:
        assert name.strip() in pairs


@pytest.mark.thinned(3)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_a_terminal_has_no_characters_for_is_escaped(encoding: str, tmp_path: Path) -> None:
    scenario = scenario_named("模型", tmp_path)
    command = [sys.executable, "-m", "simulator", "run", str(scenario)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=False)
    assert done.returncode == 0, done.stderr
    assert ("模型" if encoding == "utf-8" else r"\u6a21\u578b") in done.stdout.decode(encoding)


def test_a_trace_cannot_write_formulas_or_control_characters(tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A0", "\x1b[31mevil", "a\nb,c", "\ud800"]
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 10 * i, "dur": 5, "pid": 0, "tid": 1, "args": {}}
        for i, name in enumerate(names)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    said = trainsim("calibrate", "trace", tmp_path / "trace.json", "--out", tmp_path / "table.csv")
    assert said.code == 0
    assert is_safe(said)
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["name"] for row in rows] == ["'=cmd|' /C calc'!A0", r"\x1b[31mevil", r"a\nb,c", r"\ud800"]


def test_commands_print_through_one_place() -> None:
    """`_show` and `cli` escape what they print; nothing else in the commands prints."""
    for module in modules():
        if module.place != "commands" or module.path.endswith("_show.py"):
            continue
        for node in ast.walk(module.tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("print", "click.echo", "click.secho", "sys.stdout.write"), f"{module.path}:{node.lineno}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_python_shows_is_printable(name: str) -> None:
    model = replace(sim.model(SMALL_MODEL), name=name)
    cluster = replace(sim.cluster("dgx-h100"), name=name)
    scenario = Scenario(model, cluster)
    for value in (model, cluster, scenario):
        assert repr(value).isprintable()
    with pytest.raises(UserError) as refused:
        sim.model({**SMALL_MODEL, name: 1})
    assert str(refused.value).replace("\n", "").isprintable()
