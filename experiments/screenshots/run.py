"""Screenshots of a compared study: its report, and TensorBoard's tabs.

$ python experiments/screenshots/run.py experiments/grid/results.csv docs/pictures  # the report
$ python experiments/screenshots/run.py outputs/digits docs/pictures                # TensorBoard's tabs

The second after `python -m mpx.compare study=digits`. It takes Chromium or Chrome, of which one must be on PATH. Existing
pictures are replaced.
"""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from mpx.render.figures import pictures
from mpx.render.html import html_report
from mpx.render.picture import styles

sys.path.append(str(Path(__file__).parents[1]))
from card import compare_file, options
from collecting import Arguments

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZES = {  # tab -> width and height in pixels
    "timeseries": (1600, 1000), "custom_scalars": (1600, 1000), "hparams": (2200, 600), "images": (1600, 1000),
}  # fmt: skip
REPORT = (1600, 1700)
COLOURS = 256  # of a picture's palette: a third of the bytes
PATIENCE_S = 60  # until TensorBoard has read the study


def shot(browser: str, address: str, file: Path, size: tuple[int, int]) -> None:
    """A picture of the upper part of a page, once it is quiet."""
    with tempfile.TemporaryDirectory() as profile:
        raw = Path(profile) / "raw.png"
        subprocess.run(
            [
                browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", "--timeout=20000",
                "--virtual-time-budget=15000", "--blink-settings=preferredColorScheme=1",
                f"--screenshot={raw}", address,
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.open(raw).convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


@contextmanager
def tensorboard(study: Path) -> Iterator[str]:
    """The address of a TensorBoard that has read the study, whose pages do not show where it lies."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", study.name, "--port", str(port)],
        cwd=study.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address, deadline = f"http://127.0.0.1:{port}/", time.monotonic() + PATIENCE_S
    try:
        while not _has_read(address):
            if time.monotonic() > deadline:
                sys.exit(f"error: TensorBoard has not read {study} in {PATIENCE_S} s.")
            time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _has_read(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}data/runs", timeout=10) as answer:
            return answer.read() not in (b"[]", b"")
    except OSError:
        return False


def main() -> int:
    parser = Arguments()
    parser.add_argument(
        "study", type=Path, help="the folder that mpx.compare has written to, or a results.csv"
    )
    parser.add_argument("out", type=Path, help="the folder for the pictures")
    parser.add_argument("--margin", type=float, default=0.005, help="of the comparison of a results.csv")
    given = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error(f"none of {', '.join(BROWSERS)} is on PATH")
    if given.study.suffix == ".csv":
        comparison = compare_file(given.study, options(f"margin={given.margin}", given.study))
        drawn = [pictures(group, comparison, styles(comparison)) for group in comparison.groups]
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            page.write_text(html_report(comparison, drawn, styles(comparison)), encoding="utf-8")
            shot(browser, page.as_uri(), given.out / "report.png", REPORT)
        return 0
    if not (given.study / "report.html").is_file():
        parser.error(f"{given.study} has no report.html: compare the study first")
    with tensorboard(given.study) as address:
        for tab, size in SIZES.items():
            shot(browser, f"{address}#{tab}", given.out / f"tensorboard-{tab}.png", size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
