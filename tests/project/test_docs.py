"""Pages hold what they say: numbered sentences of docs/semantics.md have tests and numbered tests sentences; places exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

from simulator.cli import cli
from simulator.config import catalog
from simulator.measurements import published_runs

from .source import ROOT, study_script

HALF = re.compile(r"^## (First|Second) half", re.MULTILINE)
SECTION = re.compile(r"^### (\d+)\. ", re.MULTILINE)
SENTENCE = re.compile(r"^(\d+)\. ", re.MULTILINE)
LETTER = {"First": "s", "Second": "t"}
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("simulator", "workloads", "topologies", "notebooks", "docs", "tests", "results", "benchmarks")
WAIST = ("task", "template", "skeleton", "timeline")
"""The modules of the engine whose classes pass between it and the rest."""
FUNCTION = re.compile(r"^ *def (test_\w+)\(", re.MULTILINE)
NAMED = re.compile(r"test_([st])(\d+)_(\d+)(?:_(and|to)_(\d+))?(?![a-z0-9])")


def sentences(page: str) -> set[tuple[str, int, int]]:
    """Half, section and number of every sentence."""
    _, *halves = HALF.split(page)
    return {
        (LETTER[half], int(section), int(number))
        for half, text in zip(halves[::2], halves[1::2], strict=True)
        for section, sentences in _sections(text)
        for number in SENTENCE.findall(sentences)
    }


def _sections(text: str) -> Iterable[tuple[str, str]]:
    _, *parts = SECTION.split(text)
    return zip(parts[::2], [part.partition("\n### ")[0] for part in parts[1::2]], strict=True)


def named(test: str) -> set[tuple[str, int, int]]:
    """The sentences that the name of a test says: `test_t4_1_to_3_...` three of them."""
    found = NAMED.match(test)
    if not found:
        return set()
    letter, section, first, joined, last = found.groups()
    numbers = range(int(first), int(last) + 1) if joined == "to" else [int(first), *([int(last)] if last else [])]
    return {(letter, int(section), number) for number in numbers}


def numbered_tests() -> dict[str, set[tuple[str, int, int]]]:
    """Every test that names a sentence, anywhere in tests/."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    functions = [name for text in texts for name in FUNCTION.findall(text)]
    return {name: told for name in functions if (told := named(name))}


def test_docs_every_sentence_of_semantics_has_a_test_and_every_such_test_a_sentence() -> None:
    written = sentences((ROOT / "docs" / "semantics.md").read_text(encoding="utf-8"))
    tested = numbered_tests()
    assert len(written) > 50
    assert not sorted(written - set().union(*tested.values())), "sentences without a test"
    assert not {name for name, told in tested.items() if told - written}, "tests of sentences that do not exist"


def test_what_a_page_and_a_name_are_read_as() -> None:
    page = "## First half: a\n### 1. One\n1. Is.\n2. Also\n   2. no.\n### Folding\n1. None.\n"
    page += "## Second half: b\n### 12. Two\n3. Is.\n"
    assert sentences(page) == {("s", 1, 1), ("s", 1, 2), ("t", 12, 3)}
    assert named("test_t4_1_to_3_idle_time") == {("t", 4, 1), ("t", 4, 2), ("t", 4, 3)}
    assert named("test_t2_1_and_2_buckets") == {("t", 2, 1), ("t", 2, 2)}
    assert named("test_s3_8_some_flows") == {("s", 3, 8)}
    assert not named("test_s_curves")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_docs_name_places_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = {page.parent / target for target in re.findall(r"\]\((?!http)([^)#]+)\)", text)}
    places = {ROOT / place for place in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.*-]*)`", text)}
    assert not [str(place) for place in targets | places if "*" not in place.name and not place.exists()]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_docs_name_commands_and_options_that_exist(page: Path) -> None:
    for line in re.findall(r"(?:`|^\$ )trainsim (\w[^`#]*?)(?:`|#|$)", page.read_text(encoding="utf-8"), re.MULTILINE):
        word, *others = line.split()
        command = cli.get_command(click.Context(cli), word)
        if isinstance(command, click.Group) and others and not others[0].startswith("-"):
            command = command.get_command(click.Context(command), others[0])
        assert command, line
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        assert {name.partition("=")[0] for name in others if re.match("--[a-z]", name)} <= known, line


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_docs_counts_of_files_are_those_of_the_catalog(page: str) -> None:
    """Such as `| Models | 124 files` and `**Frameworks.** 33 files`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    stated = re.findall(r"\b(Models|Frameworks|Clusters|GPUs|Schedules|Scenarios)\b[ .*|]+(\d+) (?:files|models)", text)
    assert stated
    assert {kind: int(count) for kind, count in stated} == {kind: len(catalog.files(kind.lower())) for kind, _ in stated}


def test_docs_counts_of_published_steps_are_those_that_ship() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"`workloads/published`, (\d+) of (\d+) papers and reports,\s+(\d+) that we timed", text)
    found = Counter(row["source_key"] for row in published_runs.rows())
    ours = found.pop("single-gpu-steps")
    assert stated
    assert [int(count) for count in stated.groups()] == [found.total(), len(found), ours]


def test_docs_changelog_has_every_bullet_once() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    bullets = re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE)
    assert not [title for title, times in Counter(bullets).items() if times > 1]
    sentences = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert not [line for line, times in Counter(sentences).items() if times > 1]


def test_docs_tour_names_functions_and_values_that_exist() -> None:
    """In the table: what a step calls is defined in its file, and what it results in is a class of the simulator."""
    page = ROOT / "docs" / "tour.md"
    rows = re.findall(r"^\| \d+ \| \[\S+\]\((\S+)\) \| (.+?) \| (.+?) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 13
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "simulator").rglob("*.py"))
    for file, functions, results in rows:
        defined = (page.parent / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", functions):
            assert re.search(rf"^ *def {name}\(", defined, re.MULTILINE), f"{file} defines no {name}"
        for name in re.findall(r"`(\w+)`", results):
            assert re.search(rf"^class {name}\b", code, re.MULTILINE), f"nothing defines {name}"


def test_docs_tour_names_the_functions_that_run_a_scenario() -> None:
    """The paragraph below the table names functions of one file."""
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    paragraph = tour.partition("Steps 4 to 11 are called")[2].partition("\n\n")[0]
    code = (ROOT / "simulator" / "simulation" / "simulate.py").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`", paragraph)
    assert len(named) == 6
    assert not [name for name in named if not re.search(rf"^def {name}\(", code, re.MULTILINE)]


def test_docs_tour_counts_ranks_and_tasks_as_the_transcript_of_the_readme() -> None:
    """Both are of `trainsim run llama3-70b-64xh100`; the transcript is what the command prints."""
    tour, readme = ((ROOT / page).read_text(encoding="utf-8") for page in ("docs/tour.md", "README.md"))
    run = readme.partition("$ trainsim run llama3-70b-64xh100\n")[2].partition("```")[0]
    printed = re.search(r"^simulated +(\d+) of (\d+) ranks, (\S+) of (\S+) tasks", run, re.MULTILINE)
    assert printed
    assert "{} of the {} ranks, {} of {} tasks".format(*printed.groups()) in tour


def terms() -> dict[str, tuple[str, Path]]:
    """Every word of the glossary: what is said of it, and the file that defines it."""
    page = ROOT / "docs" / "glossary.md"
    entries = re.split(r"^- ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = [re.fullmatch(r"\*\*(.+?)\*\*: (.+?)\s+\[\S+\]\((\S+)\)\s*", entry, re.DOTALL) for entry in entries]
    assert all(found), [entry for entry, parts in zip(entries, found, strict=True) if not parts]
    return {parts[1]: (parts[2], (page.parent / parts[3]).resolve()) for parts in found if parts}


def test_docs_glossary_says_of_each_word_one_sentence_and_where_it_is_defined() -> None:
    assert list(terms()) == sorted(terms(), key=str.lower)
    for term, (sentence, file) in terms().items():
        assert sentence.endswith("."), term
        assert not re.search(r"[a-z)]\. ", sentence), f"{term}: one sentence"
        defined = file.read_text(encoding="utf-8")
        for name in re.findall(r"`([A-Z]\w+)`", sentence):
            assert re.search(rf"^class {name}\b", defined, re.MULTILINE), f"{term}: {file.name} defines no {name}"


def test_docs_glossary_has_every_noun_that_the_layers_pass_to_each_other() -> None:
    """A class that a program, a task graph or a timeline is made of has an entry."""
    files = [*(ROOT / "simulator" / "program").glob("*.py"), *(ROOT / "simulator" / "engine" / f"{name}.py" for name in WAIST)]
    nouns = {name for file in files for name in re.findall(r"^class ([A-Z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE)}
    explained = {name for sentence, _ in terms().values() for name in re.findall(r"`([A-Z]\w+)`", sentence)}
    assert len(nouns) > 15
    assert not nouns - explained


@pytest.mark.parametrize("study", ["collectives", "kernels"])
def test_docs_results_without_their_table_say_so_and_write_nothing(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study_script(study)
    monkeypatch.setattr(made, "TABLE", ROOT / "no such table.csv.gz")
    monkeypatch.setattr(made, "atomic", None)
    made.main()
    assert capsys.readouterr().out == "no such table.csv.gz is not there: nothing to do\n"
