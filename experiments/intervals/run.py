"""Do the intervals of a difference in accuracy cover the truth, for this test set and for the population that
it was drawn from?

$ python experiments/intervals/run.py  # simulate every case: results.csv and README.md beside this file, ten minutes on a core
$ python experiments/intervals/run.py coarse-tied   # only these cases; the rows of the others stay
$ python experiments/intervals/run.py --card        # README.md from results.csv

--studies=N simulates fewer, --out=DIR writes elsewhere.
"""

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import Arguments, markdown, read

from mpx.compare.population import TINY, scatter
from mpx.compare.run import METRICS
from mpx.compare.statistics import Finding, examine

CONFIDENCE, MARGIN, SEEDS = 0.95, 0.01, (3, 5, 10)
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


def rows(name: str, studies: int) -> list[dict[str, str]]:
    return [row for seeds in SEEDS for row in _rows(name, seeds, studies)]


def _rows(name: str, seeds: int, studies: int) -> list[dict[str, str]]:
    draw, case = np.random.default_rng([seeds, *name.encode()]), CASES[name]
    found = [study(draw, case, seeds) for _ in range(studies)]
    truth = np.array([(one.here, one.everywhere) for one in found])
    tied = np.array([np.ptp(one.setting.mean(axis=1) - one.control.mean(axis=1)) < 1e-12 for one in found])
    given = [intervals(one) for one in found]
    return [
        {
            "case": name,
            "samples": case.samples,
            "seeds": seeds,
            "studies": studies,
            "tied": f"{tied.mean():.4f}",
            "interval": kind,
        }
        | _figures(np.array([one[kind] for one in given], dtype=float), truth)
        for kind in (HERE, EVERYWHERE)
    ]


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
CARD = """# Do the intervals cover the truth?

**Question.** A difference in accuracy is measured over a few seeds and on one test set. `mpx.compare` gives it an interval for this test
set, by a t test over the seeds, and one for the population that the test set is a sample of, by the predictions on every test sample. Do
they hold 95 %, for a fine metric, for a coarse one, and where pairs tie?

**Setup.** {studies} simulated studies for each row, judged by the functions that `mpx.compare` runs. A run classifies a
sample correctly if four terms have a positive sum: the sample's margin, the setting's effect on the sample, the seed's effect on all
samples, and the seed's effect on this one. So the true differences are known in closed form, on the drawn test set and in the population.
NumPy on a CPU.

**Command.** `python experiments/intervals/run.py`

{table}

**For this test set,** its interval covers the true difference in {here} of studies. In the worst case it covers that of the population in
only {least}: more seeds make it narrower, and bring no new test samples.

**For the population,** its interval covers the true difference in {everywhere} of studies. It is wider than needed where hardly any sample
tells the settings apart, as in *{tied_case}*: what none of 360 samples shows may still be in 1 % of the population. A setting that loses
just the margin in the population is called "no loss" in at most {false} of studies by this interval's test, which promises 5 %. The test
over seeds calls it so in up to {false_seeds}.

**Ties.** In *{tied_case}*, all pairs tie in up to {most_tied} of studies. Where a side shows no spread at all, nothing says how its seeds
scatter, so there is no interval and no decision: of all studies with three seeds, {shown} have one for the test set. {zero} of {intervals}
intervals has the width zero.

**Not shown.** The seeds and the samples are normal and independent here. A real test set may be no random sample of anything.
"""


def card(found: list[dict[str, str]]) -> str:
    by = {(row["case"], row["seeds"], row["interval"]): row for row in found}
    keys = [(name, str(seeds)) for name in CASES for seeds in SEEDS if (name, str(seeds), HERE) in by]
    lines = []
    for name, seeds in keys:
        here, wide = by[name, seeds, HERE], by[name, seeds, EVERYWHERE]
        cells = [
            CASES[name].words,
            here["samples"],
            seeds,
            _percent(here["tied"]),
            _percent(here["covers_test_set"]),
        ]
        cells += [_percent(here["covers_population"]), _percent(wide["covers_population"])]
        lines.append(cells + [f"{100 * float(row['half_width']):.2f}" for row in (here, wide)])
    here, wide, tied = (
        [by[*key, HERE] for key in keys], [by[*key, EVERYWHERE] for key in keys],
        [row for row in found if row["case"] == "coarse-tied"],
    )  # fmt: skip
    (three,) = (row for row in tied if row["seeds"] == "3" and row["interval"] == HERE)
    return CARD.format(
        studies=f"{int(found[0]['studies']):,}",
        table=markdown(HEADS, lines),
        here=_range(here, "covers_test_set"),
        least=_percent(min(row["covers_population"] for row in here)),
        everywhere=_range(wide, "covers_population"),
        tied_case=CASES["coarse-tied"].words,
        false=_percent(max(row["false_no_loss"] for row in wide)),
        false_seeds=_percent(max(row["false_no_loss"] for row in here)),
        most_tied=_percent(max(row["tied"] for row in tied)),
        shown=_percent(three["shown"]),
        zero=sum(int(row["zero_width"]) for row in found) or "None",
        intervals=f"{sum(round(float(row['shown']) * int(row['studies'])) for row in found):,}",
    )


def _percent(share: str) -> str:
    return f"{100 * float(share):.1f} %"


def _range(found: list[dict[str, str]], name: str) -> str:
    shares = sorted(row[name] for row in found)
    return f"{100 * float(shares[0]):.1f} to {_percent(shares[-1])}"


def main() -> None:
    parser = Arguments()
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    parser.add_argument("--studies", type=int, default=10_000)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="folder for results.csv and README.md"
    )
    parser.add_argument("--card", action="store_true", help="simulate nothing")
    given = parser.parse_args()
    if unknown := set(given.cases) - CASES.keys():
        parser.error(f"{min(unknown)} is no case. There are: {', '.join(CASES)}.")
    wanted = () if given.card else given.cases or list(CASES)
    table, found = given.out / "results.csv", {name: [] for name in CASES}
    for row in read(table) if table.is_file() else ():
        found[row["case"]].append(row)
    for name in wanted:
        found[name] = rows(name, given.studies)
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for those in found.values() for row in those)
    if missing := [name for name, those in found.items() if not those]:
        print(f"no README.md yet: {', '.join(missing)} to come")
        return
    text = card(read(table))
    (given.out / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
