"""How well collectives carry over: every system of the table left out, one after the other, and predicted from its description.

    python benchmarks/collectives_held_out.py

reads ../shared/data/collectives.csv.gz. A system that is left out loses all its rows, and what was set by hand to its log (by
system, in results/collectives/described_links.py: shares of PCIe, rates of pairs, the norm of two bottlenecks, trees over two
nodes, the time per peer, the plug-in of EFA). Fabrics, curves and laws are then fitted again to the rows of all other systems
whose role is `fit`, those on the same fabric included: without HGX H100 the all-reduces of p5 stay, and links that a few rows are
left of are fitted to these. What stays too is what no row gave: data sheets, the source of NCCL and of plug-ins, and the forms of
the laws. Rows that are never fitted (PCIe servers, bridged pairs) are predicted in the same way. In the second part only one log
of a system is left out: another run, or another version of the library, on links that stay measured. A row is in its interval if
it lies within two of the standard errors that are stated with the time. Beside the means over all systems stand those over
systems that pass the two rules of results/collectives/data_rules.py, which look at measurements and descriptions and at no
prediction.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "results" / "collectives"))
import data_rules
import held_out
import make


def main() -> None:
    if not make.TABLE.exists():
        print(f"{make.TABLE.name} is not there: nothing to do")
        return
    rows = make.measured(make.TABLE)
    for title, found in (("One system left out", make.systems_left_out(rows)), ("One log left out", make.logs_left_out(rows))):
        print(f"\n{title}: {len(found):,} rows")
        print("\n".join(data_rules.means(found, data_rules.by_system(found))))
        by_system = held_out.scores(found, lambda row: row.system)
        by_provenance = held_out.scores(found, lambda row: row.time.provenance)
        for name, one in {**by_system, **by_provenance}.items():
            errors = f"median {one.median:6.1%}  p90 {one.p90:6.1%}  bias {one.bias:+6.1%}  in interval {one.covered:6.1%}"
            print(f"  {name:<34}{one.rows:>6}  {errors}")


if __name__ == "__main__":
    main()
