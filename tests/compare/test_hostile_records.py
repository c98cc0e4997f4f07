"""mpx.compare over records and tables that are damaged or made to do harm: no traceback, and nothing of it reaches other groups."""

import contextlib
import copy
import io
import json
import random
import re

import pytest
from made_runs import compared, deployed_row, record, write
from started import start

from mpx.compare import served_csv
from mpx.compare.__main__ import main
from mpx.compare.collect import collect
from mpx.compare.results import from_csv, to_csv
from mpx.errors import UserError
from mpx.render.markdown import markdown_report
from mpx.render.terminal import print_comparison

RED = "\x1b[31mred\x1b[0m"
ODD = [
    None, True, False, 0, -1, 1, 2, 10**400, 10**19, -(10**19), 1e308, -1e308, 5e-324, float("inf"), float("nan"), "", "x" * 3000, "\ud800",
    "a\udc80b", RED, "\x1b]0;title\x07", "\x9b31m", "=1+1", "@a", "+a", "\t-a", "'=a", "\u202e", "\x00", "\n", "\r", r"\u12", r"\g<9>",
    "a b", "=", "%s", "$_{", [], {}, [[]], {"a": {}}, [None], ["a"], {"x": [1]}, "1e308", "1_000",
]  # fmt: skip
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")  # what a terminal obeys
MUTATIONS = 200


def places(value, at=()):
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(item, (*at, key))


def mutated(value, chance):
    """A copy with one to three entries deleted, renamed or replaced."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2, 3))):
        *way, last = chance.choice(list(places(value)) or [(None,)])
        parent = value
        for key in way:
            parent = parent[key]
        how = chance.random()
        if last is None:
            break
        if how < 0.2:
            del parent[last]
        elif how < 0.35 and isinstance(parent, dict):
            parent[str(chance.choice(ODD))] = parent.pop(last)
        else:
            parent[last] = copy.deepcopy(chance.choice(ODD))
    return value


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "outputs" / "s"
    for precision, better in (("fp32", 0), ("amp", 0.01)):
        for seed in range(2):
            write(
                folder / precision / f"seed{seed}", record(precision=precision, seed=seed, data="mnist", accuracy=0.9 + seed / 100 + better)
            )
    return folder


def told(study, **changed):
    """What mpx.compare finds and prints of the study: the comparison, and the text."""
    runs, left_out = collect(study)
    comparison = compared(runs, metric="auto", left_out=left_out, folder=study, **changed)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_comparison(comparison)
    return runs, comparison, out.getvalue()


def of_mnist(comparison):
    return [(group.train_verdict, group.serve_verdict, group.notes) for group in comparison.groups if group.data == "mnist"]


def test_mutated_records_give_no_traceback_and_leave_other_groups_alone(study):
    chance, before = random.Random(0), of_mnist(told(study)[1])
    write(study / "other" / "seed0", record())
    write(study / "other" / "seed1", record(seed=1))
    served = {"rows": [deployed_row(), deployed_row(backend="eager")]}
    for _ in range(MUTATIONS):
        bad = write(study / "bad" / "seed1", json.dumps(mutated(record(seed=1, precision="amp", **{"optimizer.lr": 0.1}), chance)))
        (bad / "deploy.json").write_text(json.dumps(mutated(served, chance)))
        runs, comparison, text = told(study)
        assert of_mnist(comparison) == before
        assert not OBEYED.search(text)
        assert not OBEYED.search(markdown_report(comparison, [()] * len(comparison.groups), None).encode().decode())
        assert from_csv(to_csv(runs), "x.csv") == runs
        served_csv.to_csv(runs).encode()


def test_mutated_tables_are_read_or_refused_in_one_line(study):
    chance, text = random.Random(0), to_csv(collect(study)[0])
    for _ in range(500):
        at = chance.randrange(len(text))
        bad = text[:at] + chance.choice(["", str(chance.choice(ODD)), ",", '"', "\n"]) + text[at + chance.choice((0, 1, 1, 9, 999)) :]
        with contextlib.suppress(UserError):  # any other error fails the test
            from_csv(bad, "x.csv")
        for end in (at, at + 1):
            if end < len(text):
                with pytest.raises(UserError):
                    from_csv(text[:end] if text[end - 1] != "\n" else text[: end - 1], "x.csv")


HOSTILE = {
    "deep": "[" * 100_000,
    "deep setting": json.dumps(record()).replace('"seed": 0', '"seed": 0, "x": ' + "[" * 5000 + "]" * 5000),
    "UTF-16": json.dumps(record()).encode("utf-16"),
    "layers": json.dumps(record() | {"sparsity": {"density": 0.5, "kept_magnitude": 0.7, "layers": [{"name": 1}]}}),
    "no layers": json.dumps(record() | {"sparsity": {"density": 0.5, "kept_magnitude": 0.7, "layers": None}}),
    "surrogate": json.dumps(record() | {"config": {"data": {"x": "\ud800"}, "trainer": {}}}),
    "huge": json.dumps(record(accuracy=1e308)),
    "huge rate": json.dumps(record(speed=1e308)),
    "escape": json.dumps(record(data=RED)),
    "failure": json.dumps(record(status="failed") | {"error": RED}),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_record_is_set_aside_with_its_reason(study, content):
    folder = study / "bad" / "seed0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    runs, comparison, text = told(study)
    assert len(runs) == 4
    ((name, reason),) = comparison.left_out
    assert (name, bool(reason)) == ("bad/seed0", True)
    assert not OBEYED.search(text)


def test_a_whole_comparison_writes_nothing_outside_the_study(study):
    """Among records with odd names, curves and folders; each output is a link to somewhere else."""
    outside = study.parent.parent / "outside"
    (outside / "inside").mkdir(parents=True)
    (outside / "inside" / "kept").write_text("kept")
    (outside / "file").write_text("kept")
    for name in ("report.html", "report.md", "results.csv", "served.csv", "differences.csv", "predictions.csv"):
        (study / name).symlink_to(outside / "file")
    for name in ("plots", "_report"):
        (study / name).symlink_to(outside)
    for path in study.glob("*/seed*/result.json"):
        path.write_text(path.read_text().replace('"seed":', r'"data.path": "C:\\u12\\g<9> $_{ =1", "seed":'))
    (study / "amp" / "seed0" / "curves.csv").write_bytes(b"tag,step,value\ntrain/loss,1,0.5\n\xff,,\ntrain/loss,x,y\ntrain/loss,2,0.25\n")
    write(study / "amp" / RED, json.dumps(record(precision="amp", seed=5)))
    done = start(main, study.parent.parent, "study=s")
    assert (done.code, done.err) == (0, "")
    assert not OBEYED.search(done.out)
    assert sorted(path.relative_to(outside).as_posix() for path in outside.rglob("*")) == ["file", "inside", "inside/kept"]
    assert {path.read_text() for path in outside.rglob("*") if path.is_file()} == {"kept"}
    for name in ("report.html", "report.md", "results.csv", "differences.csv", "plots", "_report"):
        assert (study / name).exists()
        assert not (study / name).is_symlink()
    assert r"C:\u12\g&lt;9&gt;" in (study / "report.html").read_text()
