"""Runs of one name that were made with other defaults are told of, key and values."""

import pytest
from made_runs import made, record, write

from mpx.compare.collect import collect
from mpx.compare.defaults import changed
from mpx.compare.results import from_csv, to_csv

USUAL = {"optimizer.lr": 0.1, "optimizer.name": "sgd", "trainer.max_epochs": 40, "precision.strict": True, "sparsity.start": 0.5}
END = "which their names do not say: a default has changed. Run the older ones again"


def run(setting="fp32-dense", **other):
    return made(setting, config=USUAL | {key.replace("__", "."): value for key, value in other.items()})


@pytest.mark.parametrize(
    ("runs", "differ"),
    [
        ([run(), run()], None),
        ([run(), run(optimizer__lr=0.4)], "optimizer.lr (0.1 and 0.4)"),
        ([run(), run("amp-2of4", optimizer__lr=0.4)], "optimizer.lr (0.1 and 0.4)"),
        ([run(), run("fp32-dense optimizer.lr=0.4", optimizer__lr=0.4)], None),
        ([run(), run(), run("fp32-dense optimizer.lr=0.4", optimizer__lr=0.4), run(optimizer__lr=0.2)], "optimizer.lr (0.1 and 0.2)"),
        ([run(), run("fp32-dense optimizer=adamw", optimizer__lr=1e-3, optimizer__name="adamw")], None),
        ([run(), run("amp-dense", precision__strict=False)], None),
        ([run("amp-dense"), run("amp-dense", precision__strict=False)], "precision.strict (True and False)"),
        ([run("amp-2of4"), run("tf32-2of4", sparsity__start=0.3)], "sparsity.start (0.5 and 0.3)"),
        ([run(), run(label_smoothing=0.1)], None),  # the first one's mpx had no such key
        ([run(), made()], None),
        ([], None),
        (
            [run(), run(optimizer__lr=1, optimizer__name="x", trainer__max_epochs=1, precision__strict=0)],
            "optimizer.lr (0.1 and 1), optimizer.name (sgd and x), precision.strict (True and 0) and 1 more",
        ),
    ],
)
def test_what_runs_differ_in_beyond_their_names(runs, differ):
    assert changed(runs) == (differ and f"runs differ in {differ}, {END}")


def test_what_loops_of_the_users_differ_in():
    """mpx has no defaults of theirs, and they may name the batch size as they like."""
    sizes = [run("fp32-dense batch=64 batch_size=64", loop="own", data__batch_size=64), run(loop="own", data__batch_size=32)]
    assert changed(sizes) is None
    found = changed([run(loop="own"), run(loop="own", trainer__max_epochs=20)])
    assert found == "runs differ in trainer.max_epochs (40 and 20), which their names do not say, so a difference may come from that"


def test_from_records_to_the_note_of_a_group(tmp_path):
    for seed, lr in enumerate((0.1, 0.1, 0.4)):
        content = record(seed=seed)
        content["config"] |= {"optimizer": {"lr": lr, "betas": [0.9, 0.99]}, "seed": seed, "study": f"s{seed}", "output_dir": f"o{seed}"}
        content["config"]["data"]["root"] = f"d{seed}"
        write(tmp_path / "a" / f"seed{seed}", content)
    runs, _ = collect(tmp_path)
    assert runs[2].config == {"data.batch_size": 256, "trainer.devices": 1, "optimizer.lr": 0.4, "optimizer.betas": [0.9, 0.99]}
    note = f"runs differ in optimizer.lr (0.1 and 0.4), {END}"
    assert changed(runs) == note
    assert all(not again.config for again in from_csv(to_csv(runs), "results.csv"))
