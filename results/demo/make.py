"""Regenerates the pictures of the README: Llama-3 70B on 64 H100s, its timeline, and its report as Chromium shows it."""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import simulator as sim
from simulator.figures.drawing import save

HERE = Path(__file__).resolve().parent
SIZE = "1280,1480"

run = sim.load("llama3-70b-64xh100").simulate()
save(sim.gantt(run), HERE / "timeline.png")
with TemporaryDirectory() as folder:
    page = Path(folder) / "report.html"
    sim.report(run, page)
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser:
        picture = f"--screenshot={HERE / 'report.png'}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}", picture]
        subprocess.run([browser, *options, f"file://{page}"], check=True, capture_output=True)
    else:
        print("no Chromium here: report.png is left as it is")
