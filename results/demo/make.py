"""Regenerates the pictures of the README: Llama-3 70B on 64 H100s.

python results/demo/make.py              # its timeline
python results/demo/make.py --browser    # and docs/report.png, which depends on the version of Chromium and fonts
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import simulator as sim
from simulator.figures.drawing import save

HERE = Path(__file__).resolve().parent
SIZE = "1280,1600"
BROWSERS = "chromium", "chromium-browser", "google-chrome"

run = sim.load("llama3-70b-64xh100").simulate()
save(sim.gantt(run), HERE / "timeline.png")
if "--browser" in sys.argv[1:]:
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        sim.report(run, page)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
        command = [browser, *options, f"--screenshot={HERE.parents[1] / 'docs' / 'report.png'}", f"file://{page}"]
        subprocess.run(command, check=True, capture_output=True)
