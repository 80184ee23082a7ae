"""Every mutation in this folder must be noticed by the fast tests that its patch names.

A mutation is a mistake that once went unnoticed, or that would: `<name>.patch` says in line 1 what it breaks and in line 2
which tests fail with it; a unified diff follows. Each is applied to a copy of the project, and the named tests run there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..project.source import refuse
from .mutation import PATCHES, Mutation, Ran, apply, check_imported, copied, faults, not_passing, run_tests

pytestmark = pytest.mark.slow
FOUND = sorted(PATCHES.glob("*.patch"))


def ran_with(mutation: Mutation, folder: Path) -> Ran:
    copy = copied(folder / "copy")
    apply(mutation, copy)
    ran = run_tests(copy, mutation.tests)
    check_imported(ran, copy)
    return ran


@pytest.mark.parametrize("patch", FOUND, ids=lambda patch: patch.stem)
def test_the_named_tests_fail_with_the_mutation(patch: Path, tmp_path: Path) -> None:
    mutation = Mutation.of(patch)
    refuse(faults(mutation, ran_with(mutation, tmp_path)))


@pytest.mark.skipif(not FOUND, reason="there are no mutations")
def test_the_named_tests_pass_without_a_mutation(tmp_path: Path) -> None:
    tests = sorted({test for patch in FOUND for test in Mutation.of(patch).tests})
    copy = copied(tmp_path / "copy")
    ran = run_tests(copy, tests)
    check_imported(ran, copy)
    refuse(not_passing(tests, ran))


# The harness itself, on a mistake of its own: one nanosecond too many, and tests that notice it or do not.

SCRATCH = """\
# {breaks}
# killed by: {tests}
diff --git a/simulator/mistake.py b/simulator/mistake.py
--- a/simulator/mistake.py
+++ b/simulator/mistake.py
@@ -1,3 +1,3 @@
 \"\"\"A module to make a mistake in.\"\"\"
{blank}
-ANSWER = 42
+ANSWER = {answer}
"""
MODULE = '"""A module to make a mistake in."""\n\nANSWER = 42\n'
TESTS = """\
import pytest
from simulator.mistake import ANSWER

def test_notices():
    assert ANSWER == 42

@pytest.mark.parametrize("answer", [41, 42])
def test_notices_in_one_case(answer):
    assert answer != 42 or ANSWER == answer

def test_does_not_notice():
    assert ANSWER

def test_breaks_down():
    if ANSWER != 42:
        raise AttributeError("no such name")

@pytest.mark.slow
def test_slow():
    assert ANSWER == 42

def test_skips():
    pytest.skip("needs what is not here")
"""


def tried(folder: Path, *tests: str, answer: str = "43", module: str = MODULE) -> list[str]:
    """The faults that are found in a mutation of a copy with the module and the tests above."""
    copy = copied(folder / "copy")
    (copy / "simulator/mistake.py").write_text(module, encoding="utf-8")
    (copy / "tests/test_mistake.py").write_text(TESTS, encoding="utf-8")
    patch = folder / "scratch.patch"
    named = " ".join(f"tests/test_mistake.py::{test}" for test in tests)
    patch.write_text(SCRATCH.format(blank=" ", breaks="the answer is wrong", tests=named, answer=answer), encoding="utf-8")
    mutation = Mutation.of(patch)
    apply(mutation, copy)
    ran = run_tests(copy, mutation.tests)
    check_imported(ran, copy)
    return faults(mutation, ran)


def test_a_mutation_that_is_noticed_is_no_fault(tmp_path: Path) -> None:
    assert tried(tmp_path, "test_notices", "test_notices_in_one_case") == []


def test_each_named_test_must_fail_by_its_judgement(tmp_path: Path) -> None:
    one, other, third = tried(tmp_path, "test_does_not_notice", "test_breaks_down", "test_notices", "test_skips")
    assert "test_does_not_notice does not notice that 'the answer is wrong': passed (x1)" in one
    assert "test_breaks_down broke down instead of failing: error: AttributeError: no such name" in other
    assert "test_skips does not notice that 'the answer is wrong': skipped" in third


@pytest.mark.parametrize("test", ["test_slow", "test_of_another_day"])
def test_a_named_test_must_exist_and_be_fast(test: str, tmp_path: Path) -> None:
    (fault,) = tried(tmp_path, test)
    assert f"{test} did not run: there is no such test, or it is marked slow" in fault


def test_a_mutation_that_breaks_the_import_is_a_fault(tmp_path: Path) -> None:
    (fault,) = tried(tmp_path, "test_notices", answer="(")
    assert "did not run" in fault
    assert "SyntaxError" in fault


def test_a_patch_that_no_longer_applies_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"scratch\.patch no longer applies(?s:.*)the output of `git diff` below"):
        tried(tmp_path, "test_notices", module=MODULE.replace("42", "6 * 7"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("no comment\n# killed by: a::b\n--- a/simulator/x.py\n", "line 1 does not say what it breaks"),
        ("# wrong\n# a::b\n--- a/simulator/x.py\n", "line 2 names no test"),
        ("# wrong\n# killed by:\n--- a/simulator/x.py\n", "line 2 names no test"),
        ("# wrong\n# killed by: a::b\n", "it has no diff"),
        ("# wrong\n# killed by: a::b\n--- a/tests/x.py\n", "it changes more than the package"),
    ],
)
def test_a_patch_of_another_form_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "x.patch").write_text(text, encoding="utf-8")
    with pytest.raises(pytest.fail.Exception, match=fault):
        Mutation.of(tmp_path / "x.patch")
