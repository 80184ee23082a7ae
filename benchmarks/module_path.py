"""Which modules a scenario passes on its way from a file to a result, and how often it comes back to one.

Every function of the package is noted when it is called for the first time. The modules of these calls in turn, neighbours of
one module merged, are the *stays*; stays less modules are the *returns*: how often a reader who follows the run comes back to a
file that was left. `--list` prints the stays.
"""

from __future__ import annotations

import argparse
import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

import simulator as sim

PACKAGE = Path(sim.__file__).parent
SCENARIOS = ("llama3-70b-64xh100",)


def stays(scenario: str) -> list[str]:
    """The modules of a run in the order of first calls, from the scenario's name to its metrics and memory."""
    seen: set[CodeType] = set()
    passed: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_flags & CO_OPTIMIZED or not code.co_filename.startswith(str(PACKAGE)):
            return
        seen.add(code)
        module = Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()
        if passed[-1:] != [module]:
            passed.append(module)

    sys.setprofile(note)
    try:
        run = sim.load(scenario).simulate()
        _ = run.metrics, run.memory
    finally:
        sys.setprofile(None)
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--list", action="store_true", help="print every stay")
    parser.add_argument("--quick", action="store_true", help="accepted as by every benchmark; nothing is left out")
    wanted = parser.parse_args()
    for scenario in wanted.scenarios:
        passed = stays(scenario)
        modules = len(set(passed))
        print(f"{scenario}: {modules} modules, {len(passed)} stays, {len(passed) - modules} returns")
        if wanted.list:
            print("\n".join(passed))


if __name__ == "__main__":
    main()
