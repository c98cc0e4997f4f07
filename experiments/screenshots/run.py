"""Screenshots of a compared study: its report, and TensorBoard's tabs.

$ python -m mpx.compare study=digits
$ python experiments/screenshots/run.py outputs/digits docs/pictures

It takes Chromium or Chrome, of which one must be on PATH. An existing file is replaced.
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

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZES = {  # tab -> width and height in pixels
    "timeseries": (1600, 1000), "custom_scalars": (1600, 1000), "hparams": (2200, 600), "images": (1600, 1000),
}  # fmt: skip
REPORT = (1600, 1400)
COLOURS = 64  # of a picture's palette: a third of the bytes, and no visible difference
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
    """The address of a TensorBoard that has read the study."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", study, "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
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
    parser.add_argument("study", type=Path, help="the folder that mpx.compare has written to")
    parser.add_argument("out", type=Path, help="the folder for the pictures")
    given = parser.parse_args()
    report = (given.study / "report.html").resolve()
    if not report.is_file():
        parser.error(f"{report} is not there: compare the study first")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error(f"none of {', '.join(BROWSERS)} is on PATH")
    shot(browser, report.as_uri(), given.out / "report.png", REPORT)
    with tensorboard(given.study) as address:
        for tab, size in SIZES.items():
            shot(browser, f"{address}#{tab}", given.out / f"tensorboard-{tab}.png", size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
