"""Runs every benchmark in this folder, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

for file in sorted(Path(__file__).parent.glob("*.py")):
    if file.stem not in ("brute_force", "calculon_space", "growth", "run", "same_numbers", "timing"):
        print(f"=== {file.stem}", flush=True)
        subprocess.run([sys.executable, str(file), *sys.argv[1:]], check=True)
