"""How often do looks (until=decided) err, and how many seeds do they save? 10,000 simulated studies of each
kind.

$ python experiments/looks/run.py            # writes results.csv and README.md (some seconds on one core)
$ python experiments/looks/run.py --card     # README.md from the committed results.csv
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import special

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import experiment, markdown

from mpx.compare.boundaries import levels, obrien_fleming
from mpx.compare.looks import SPENT, Plan
from mpx.compare.statistics import examine
from mpx.runs.result import METRICS

HERE = Path(__file__).parent
STUDIES, IMAGES, LEVEL = 10_000, 1000, 0.05
PLAN = Plan(margin=0.01, confidence=1 - LEVEL, control="auto", max_seeds=20, looks=5)
GRID = replace(PLAN, looks=4)  # of experiments/grid, which has seven settings and a control
COUNTS = range(2, PLAN.max_seeds + 1)  # seeds after which a test is possible
AS_RUN, ALL_LOOKS = "until=decided", "until=decided, all looks taken"
FLAT, PEEKING = "O'Brien–Fleming, all looks taken", "peeking"
SINGLE = "a single test after the last seed"
FAMILIES = {  # (settings, how many of them lose the margin, plan): how the card calls them
    (3, 3, PLAN): "three settings, any of them wrong",
    (7, 7, GRID): "seven settings by the plan of [grid](../grid), any of them wrong",
    (7, 1, GRID): "the same, six settings lose nothing, the seventh wrong",
}
SHAPES = {
    "normal": "normal",
    "heavy": "heavy tails (Student's t, 3 degrees)",
    "unequal": "the setting scatters three times as much",
    "coarse": f"accuracies of {IMAGES:,} test images",
    "failing": "one seed in ten fails by three margins more",
}
# (shape, standard deviation of the paired difference in margins, true loss in margins)
AT_MARGIN = [
    *((shape, 1.0, 1.0) for shape in ("normal", "heavy", "unequal")),
    *(("coarse", scatter, 1.0) for scatter in (0.1, 0.3, 1.0)),
    ("failing", 1.0, 1.0),
]
ELSEWHERE = [
    *(("normal", scatter, 0.0) for scatter in (0.5, 1.0, 2.0)),
    ("normal", 0.5, 0.5),
    ("normal", 1.0, 2.0),
    ("heavy", 1.0, 0.0),
    ("unequal", 1.0, 0.0),
    ("coarse", 0.3, 0.0),
]
COLUMNS = ("design", "settings", "wrong", "looks", "shape", "scatter", "loss", "studies", "no_loss", "lost")
COLUMNS += ("seeds", "single_seeds")
SAVINGS = ("differences", "scatter", "true loss", "no loss", "loss", "seeds (mean)", "a single test", "saved")
SAVINGS += ("seeds, all looks", "O'Brien–Fleming")


def draw(
    shape: str, scatter: float, loss: float, rng: np.random.Generator, settings: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies of settings and control, [studies, seeds · settings] and [studies, seeds]."""
    size = (STUDIES, PLAN.max_seeds)
    noise = {"heavy": lambda size: rng.standard_t(3, size) / np.sqrt(3)}.get(shape, rng.standard_normal)
    weights = np.array([3, 1]) / np.sqrt(10) if shape == "unequal" else np.array([1, 1]) / np.sqrt(2)
    own, theirs = noise((STUDIES, PLAN.max_seeds * settings)), noise(size)
    setting = 0.9 + PLAN.margin * (scatter * weights[0] * own - loss)
    control = 0.9 + PLAN.margin * scatter * weights[1] * theirs
    if shape == "failing":
        setting += PLAN.margin * 3 * (0.1 - (rng.random(setting.shape) < 0.1))
    if shape == "coarse":
        setting, control = (np.round(side * IMAGES) / IMAGES for side in (setting, control))
    return setting, control


def p_values(setting: np.ndarray, control: np.ndarray, n: int) -> np.ndarray:
    """For no loss and for a loss, [2, studies], after n seeds. As `examine` computes them, which serves those
    without variance.
    """
    above = setting[:, :n] - control[:, :n] + PLAN.margin
    same = np.min([np.ptp(one, axis=1) for one in (above, setting[:, :n], control[:, :n])], axis=0) < 1e-9
    t = above.mean(1) / np.where(same, 1.0, above.std(1, ddof=1) / np.sqrt(n))
    found = special.stdtr(n - 1, np.stack([-t, t]))
    for study in np.flatnonzero(same):
        values = (dict(enumerate(side[study, :n].tolist())) for side in (setting, control))
        finding = examine(*values, METRICS["test/accuracy"], PLAN.margin, PLAN.confidence)
        found[:, study] = [1.0, 1.0] if finding.p_no_loss is None else [finding.p_no_loss, finding.p_loss]
    return found


def stop(
    tests: dict[int, np.ndarray], at: dict[int, float], hopeless: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(1 for no loss, 2 for a loss, 0 for neither; seeds) of each study. tests: seeds -> p values. at: seeds
    -> level of the test.
    """
    decided, seeds, over = np.zeros(STUDIES, int), np.full(STUDIES, max(at)), np.zeros(STUDIES, bool)
    for look, (n, level) in enumerate(at.items(), 1):
        now = np.where(tests[n][0] < level, 1, np.where(tests[n][1] < level, 2, 0))
        decided, seeds = np.where(over, decided, now), np.where(over, seeds, n)
        over |= decided > 0
        if hopeless and look < len(at):
            over |= [PLAN.hopeless(p, look, LEVEL) for p in tests[n].min(0)]
    return decided, seeds


def simulate() -> Iterator[dict]:
    looks = dict(zip(PLAN.sizes, PLAN.levels(LEVEL), strict=True))
    designs = {
        AS_RUN: looks,
        ALL_LOOKS: looks,
        FLAT: dict(zip(PLAN.sizes, levels(SPENT * LEVEL, PLAN.shares, obrien_fleming), strict=True)),
        PEEKING: dict.fromkeys(COUNTS, LEVEL),
        SINGLE: {PLAN.max_seeds: LEVEL},
    }
    for number, (shape, scatter, loss) in enumerate([*AT_MARGIN, *ELSEWHERE]):
        setting, control = draw(shape, scatter, loss, np.random.default_rng(number))
        tests = {n: p_values(setting, control, n) for n in COUNTS}
        about = {"settings": 1, "shape": shape, "scatter": scatter, "loss": loss, "studies": STUDIES}
        for design, at in designs.items():
            decided, seeds = stop(tests, at, hopeless=design == AS_RUN)
            share = (decided == 1).mean()
            enough = (n for n in COUNTS if (tests[n][0] < LEVEL).mean() >= share)
            single = next(enough, None) if loss < 1 else None
            row = {"design": design, "no_loss": share, "lost": (decided == 2).mean()}
            yield about | row | {"seeds": seeds.mean(), "single_seeds": single}
    for kind in FAMILIES:
        yield family(*kind)


def family(settings: int, wrong: int, plan: Plan) -> dict:
    """Several settings with one control: how often Holm's method errs for any of those that lose the margin,
    at any look.

    The others lose nothing. What is decided trains no further seeds, and keeps its p value.
    """
    drawn, control = draw("normal", 1.0, 1.0, np.random.default_rng(99), settings)
    arms = np.split(drawn, settings, axis=1)
    for arm in arms[wrong:]:
        arm += PLAN.margin
    at = [plan.levels(LEVEL / left) for left in range(1, settings + 1)]
    passes, decided = np.zeros((STUDIES, settings), int), np.zeros((STUDIES, settings), bool)
    for look, n in enumerate(plan.sizes):
        p = np.stack([p_values(arm, control, n)[0] for arm in arms], axis=1)
        # with up to so many settings left
        passes = np.where(decided, passes, sum(p < levels[look] for levels in at))
        order = np.argsort(-passes, axis=1, kind="stable")
        found = np.logical_and.accumulate(
            np.take_along_axis(passes, order, 1) >= np.arange(settings, 0, -1), axis=1
        )
        decided |= np.take_along_axis(found, np.argsort(order, axis=1), 1)
    about = {"design": ALL_LOOKS, "settings": settings, "wrong": wrong, "looks": plan.looks}
    about |= {"studies": STUDIES, "shape": "normal", "scatter": 1.0, "loss": 1.0}
    return about | {"no_loss": decided[:, :wrong].any(1).mean()}


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    """The tables of the card."""

    def of(kind: tuple, design: str) -> dict[str, str]:
        wanted = (design, "1", *map(str, kind))
        names = ("design", "settings", "shape", "scatter", "loss")
        return next(row for row in rows if tuple(row[name] for name in names) == wanted)

    errors = []
    for kind in AT_MARGIN:
        shares = (share(of(kind, design)) for design in (AS_RUN, ALL_LOOKS, SINGLE, PEEKING))
        errors.append([SHAPES[kind[0]], kind[1], *shares])
    for (settings, wrong, plan), name in FAMILIES.items():
        wanted = (str(settings), str(wrong), str(plan.looks))
        family = next(row for row in rows if (row["settings"], row["wrong"], row["looks"]) == wanted)
        errors.append([name, 1.0, "–", share(family), "–", "–"])
    savings = []
    for kind in ELSEWHERE:
        run, all_looks, flat = (of(kind, design) for design in (AS_RUN, ALL_LOOKS, FLAT))
        single = int(run["single_seeds"]) if run["single_seeds"] and kind[2] < 1 else None
        saved = f"{100 * (1 - float(run['seeds']) / single):.0f} %" if single else "–"
        lost = f"{100 * float(run['lost']):.1f} %"
        seeds = [f"{float(row['seeds']):.1f}" for row in (run, all_looks, flat)]
        savings.append(
            [SHAPES[kind[0]], *kind[1:], share(run), lost, seeds[0], single or "–", saved, *seeds[1:]]
        )
    heads = ["differences", "scatter", AS_RUN, "all looks taken", "a single test", "peeking"]
    return {"errors": markdown(heads, errors), "seeds": markdown(SAVINGS, savings)}


def share(row: dict[str, str]) -> str:
    return f"{100 * float(row['no_loss']):.1f} %"


if __name__ == "__main__":
    experiment(HERE, COLUMNS, lambda _: simulate(), card)
