"""Do the intervals of a difference in accuracy cover the truth, for this test set and for the population that
it was drawn from?

$ python experiments/intervals/run.py         # writes results.csv and the table of README.md; ten minutes on a core
$ python experiments/intervals/run.py --card  # the table from the committed results.csv
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import experiment, markdown

from mpx.compare.population import TINY, scatter
from mpx.compare.statistics import Finding, examine
from mpx.runs.result import METRICS

CONFIDENCE, MARGIN, SEEDS, STUDIES = 0.95, 0.01, (3, 5, 10), 10_000
FOLDER = Path(__file__).parent
HERE, EVERYWHERE = "test set", "population"  # kinds of intervals
COLUMNS = (
    "case", "samples", "seeds", "studies", "tied", "interval", "shown", "zero_width", "covers_test_set",
    "covers_population",
    "half_width", "false_no_loss",
)  # fmt: skip


class Case(NamedTuple):
    """A run has a sample right if margin + effect + seed + noise > 0; all but the effect are normal. The
    control's effect is 0.

    The standard deviation of the margins is 1.
    """

    words: str
    samples: int  # of the test set
    margin: float  # mean over the population: how easy the task is
    effect: float  # mean over the population
    differs: float  # standard deviation of the effect over samples
    seed: float  # of what a seed does to all samples of a run
    noise: float  # of what it does to each sample by itself


CASES = {
    "fine-seeds": Case("fine metric, seeds scatter most", 2000, 1.3, -0.02, 0.10, 0.08, 0.25),
    "fine-both": Case("fine metric, seeds and samples scatter alike", 2000, 1.3, -0.02, 0.25, 0.03, 0.25),
    "fine-samples": Case("fine metric, samples scatter most", 2000, 1.3, -0.02, 0.40, 0.0, 0.15),
    "coarse": Case("coarse metric", 360, 1.6, -0.05, 0.30, 0.02, 0.15),
    "coarse-tied": Case("coarse metric, pairs often tie", 360, 2.3, -0.02, 0.10, 0.0, 0.08),
}


class Study(NamedTuple):
    setting: np.ndarray  # [seeds, samples]: 1 where a sample is right
    control: np.ndarray
    here: float  # the true difference on this test set, over all seeds
    everywhere: float  # and on all samples


def study(draw: np.random.Generator, case: Case, seeds: int) -> Study:
    margin = draw.normal(case.margin, 1, case.samples)
    moved = margin + draw.normal(case.effect, case.differs, case.samples)
    sides = [_right(draw, at, case, seeds) for at in (moved, margin)]
    run = np.hypot(case.seed, case.noise)
    here = float(np.mean(ndtr(moved / run) - ndtr(margin / run)))
    all_of_setting = ndtr((case.margin + case.effect) / np.sqrt(1 + case.differs**2 + run**2))
    return Study(*sides, here, float(all_of_setting - ndtr(case.margin / np.sqrt(1 + run**2))))


def _right(draw: np.random.Generator, at: np.ndarray, case: Case, seeds: int) -> np.ndarray:
    noise = case.noise * draw.standard_normal((seeds, case.samples), dtype=np.float32)
    return (at + draw.normal(0, case.seed, (seeds, 1)) + noise > 0).astype(np.uint8)


def intervals(found: Study) -> dict[str, tuple[float | None, float | None, float | None]]:
    """Kind -> (low, high, p for a loss of at least the population's), by what mpx.compare runs. None: the
    seeds tie.
    """
    over_both = scatter(found.setting, found.control, paired=True)
    over_seeds, at_truth = _finding(found, MARGIN), _finding(found, -found.everywhere)
    tied = any(variance <= TINY for variance, _ in over_both.seeds)
    wide = (None, None, None) if tied else (*over_both.interval(CONFIDENCE), over_both.p(1, found.everywhere))
    return {HERE: (over_seeds.low, over_seeds.high, at_truth.p_no_loss), EVERYWHERE: wide}


def _finding(found: Study, margin: float) -> Finding:
    values = [dict(enumerate(side.mean(axis=1).tolist())) for side in (found.setting, found.control)]
    return examine(*values, METRICS["test/accuracy"], margin, CONFIDENCE)


def simulate() -> Iterator[dict]:
    for name, case in CASES.items():
        for seeds in SEEDS:
            draw = np.random.default_rng([seeds, *name.encode()])
            found = [study(draw, case, seeds) for _ in range(STUDIES)]
            truth = np.array([(one.here, one.everywhere) for one in found])
            ties = [np.ptp(one.setting.mean(axis=1) - one.control.mean(axis=1)) < 1e-12 for one in found]
            about = {"case": name, "samples": case.samples, "seeds": seeds, "studies": STUDIES}
            about["tied"] = f"{np.mean(ties):.4f}"
            given = [intervals(one) for one in found]
            for kind in (HERE, EVERYWHERE):
                of_kind = np.array([one[kind] for one in given], dtype=float)
                yield about | {"interval": kind} | _figures(of_kind, truth)


def _figures(given: np.ndarray, truth: np.ndarray) -> dict[str, str]:
    """given: low, high and p of each study, NaN for unknown. truth: on the test set and for the
    population.
    """
    low, high, p = given.T
    there = ~np.isnan(low)
    covered = (low[:, None] <= truth) & (truth <= high[:, None])
    inside = covered[there].mean(axis=0)
    return {
        "shown": f"{there.mean():.4f}",
        "zero_width": int((high[there] <= low[there]).sum()),
        "covers_test_set": f"{inside[0]:.4f}",
        "covers_population": f"{inside[1]:.4f}",
        "half_width": f"{(high - low)[there].mean() / 2:.5f}",
        "false_no_loss": f"{np.mean(p < 1 - CONFIDENCE):.4f}",
    }


HEADS = (
    "case", "test samples", "seeds", "pairs that tie", "test set's interval covers the test set",
    "… covers the population",
    "population's interval covers the population", "half width of the test set's, points",
    "… of the population's",
)  # fmt: skip


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    """The table of the card."""
    by = {(row["case"], row["seeds"], row["interval"]): row for row in rows}
    lines = []
    for name in CASES:
        for seeds in map(str, SEEDS):
            here, wide = by[name, seeds, HERE], by[name, seeds, EVERYWHERE]
            shares = (
                here["tied"],
                here["covers_test_set"],
                here["covers_population"],
                wide["covers_population"],
            )
            widths = [f"{100 * float(row['half_width']):.2f}" for row in (here, wide)]
            lines.append([CASES[name].words, here["samples"], seeds, *map(_percent, shares), *widths])
    return {"table": markdown(HEADS, lines)}


def _percent(share: str) -> str:
    return f"{100 * float(share):.1f} %"


if __name__ == "__main__":
    experiment(FOLDER, COLUMNS, lambda _: simulate(), card)
