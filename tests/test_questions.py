"""Two people's questions: from their own data to a verdict, by the commands that they type. Those with a module
are in tests/projects/test_projects_to_a_verdict.py.
"""

import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow
SWEEP = "-m precision=fp32,amp_bf16 seed=0,1,2"


@pytest.fixture
def typed(tmp_path):
    """typed("mpx.train …") -> what python -m of these words prints, in a folder of the user's own."""

    def run(line: str) -> str:
        words = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        printed = done.stdout + done.stderr
        assert done.returncode == 0, printed
        assert "error" not in printed
        assert "Warning" not in printed
        return printed

    return run


def check_verdict(printed: str, folder, study: str) -> None:
    """Of all six runs, by the accuracy, and in the report."""
    assert re.search(r"^ setting +seeds +.*accuracy.*decision", printed, re.MULTILINE)
    assert re.search(r"^ amp_bf16-dense +3 +[\d.]+", printed, re.MULTILINE)
    report = (folder / "outputs" / study / "report.md").read_text()
    assert "bf16-dense" in report
    assert (folder / "outputs" / study / "report.html").is_file()


def test_i_have_a_folder_of_images(typed, tmp_path):
    """PNG and JPEG, in colour, grey and CMYK, in one folder for each class."""
    random = np.random.default_rng(0)
    for label, brightness in (("dark", 80), ("light", 150)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for i in range(100):
            pixels = random.normal(brightness, 40, (32, 32, 3)).clip(0, 255).astype(np.uint8)
            mode, ending = (("RGB", "png"), ("RGB", "jpg"), ("L", "png"), ("CMYK", "jpg"))[i % 4]
            Image.fromarray(pixels).convert(mode).save(tmp_path / "pictures" / label / f"{i}.{ending}")
    words = "study=pictures model=mlp data=image_folder data.path=pictures data.batch_size=16"
    typed(f"mpx.train {SWEEP} {words} trainer.max_epochs=3 data.workers=0")
    check_verdict(typed("mpx.compare study=pictures margin=0.05"), tmp_path, "pictures")


def test_i_have_a_csv(typed, tmp_path):
    random = np.random.default_rng(0)
    rows = [
        f"{' '.join(random.permutation([word, *map(str, random.integers(0, 50, 4))]))},{label}"
        for word, label in (("good", "yes"), ("bad", "no"))
        for _ in range(200)
    ]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    words = "study=reviews model=lstm data=text_csv data.path=reviews.csv data.seq_len=8 data.cache=cache"
    typed(f"mpx.train {SWEEP} {words} trainer.max_epochs=3 data.batch_size=16")
    check_verdict(typed("mpx.compare study=reviews margin=0.05"), tmp_path, "reviews")
