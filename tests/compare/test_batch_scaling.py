"""Speed-up by batch size, where a study ran several: on the terminal, in the page, in Markdown, in a card, in TensorBoard."""

from dataclasses import replace

import pytest
from made_runs import seeds
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mpx.compare.aggregate import compare
from mpx.compare.batch_scaling import growths, shared, sizes
from mpx.compare.results import to_csv
from mpx.compare.run import text_of
from mpx.errors import UserError
from mpx.render.card import update_card
from mpx.render.comparison_tables import growth_table
from mpx.render.report import write
from mpx.render.table import in_markdown
from mpx.render.terminal import print_comparison

STEPS = "trainer.max_steps=200"
FP32 = {32: 100.0, 128: 200.0, 512: 250.0}  # samples/s
GAIN = {32: 1.1, 128: 2.0, 512: 4.0}


def made(setting, size, speed, **changed):
    """Three seeds; 128 is the task's own batch size, which nobody has to name."""
    changes = " ".join([f"data.batch_size={size}"] * (size != 128) + [STEPS])
    return seeds(f"{setting} {changes}", [0.9, 0.91, 0.92], [speed, speed, speed], batch_size=size, **changed)


def study(folder, *batch_sizes):
    runs = [run for size in batch_sizes for run in made("fp32-dense", size, FP32[size])]
    runs += [run for size in batch_sizes for run in made("amp-dense", size, FP32[size] * GAIN[size])]
    runs += made("amp-2of4", 512, 900.0)
    return runs, compare(
        runs, study="batch_size", control="fp32-dense", metric="test/accuracy", margin=0.01, confidence=0.95, folder=folder
    )


def test_each_setting_against_the_control_of_its_batch_size(tmp_path):
    _, found = study(tmp_path, 512, 32, 128)
    (amp,) = growths(found)  # amp-2of4 ran at one size
    assert (amp.of, amp.setting) == ("resnet18 on cifar10", "amp-dense")
    assert text_of(shared(found)) == STEPS
    assert list(amp.speedups) == sizes([amp]) == [32, 128, 512]
    assert {size: speedup.ratio for size, speedup in amp.speedups.items()} == pytest.approx(GAIN)
    assert in_markdown(growth_table("", found, {})).splitlines()[0] == "|  | setting | batch 32 | batch 128 | batch 512 |"


def test_what_models_do_not_share_is_said_of_each(tmp_path):
    runs, _ = study(tmp_path, 32, 128)
    for size in (32, 128):
        for setting in ("fp32-dense", "amp-dense"):
            changes = " ".join(["data.batch_size=32"] * (size == 32) + ["trainer.max_steps=9"])
            runs += seeds(f"{setting} {changes}", [0.9] * 3, [100.0] * 3, batch_size=size, model="lstm")
    found = compare(runs, study="b", control="fp32-dense", metric="test/accuracy", margin=0.01, confidence=0.95, folder=tmp_path)
    assert shared(found) == {}
    assert {growth.of for growth in growths(found)} == {f"resnet18 on cifar10, {STEPS}", "lstm on cifar10, trainer.max_steps=9"}


def test_settings_come_in_one_order_for_all_models(tmp_path):
    """Whichever of them is the faster one there."""
    runs = []
    for model, faster in (("resnet18", "amp-dense"), ("lstm", "tf32-dense")):
        for size in (32, 128):
            for setting in ("fp32-dense", "amp-dense", "tf32-dense"):
                name = f"{setting} data.batch_size=32" if size == 32 else setting
                runs += seeds(name, [0.9] * 3, [300.0 if setting == faster else 200.0] * 3, batch_size=size, model=model)
    found = compare(runs, study="b", control="fp32-dense", metric="test/accuracy", margin=0.01, confidence=0.95, folder=tmp_path)
    order = {model: [g.setting for g in growths(found) if g.of.startswith(model)] for model in ("resnet18", "lstm")}
    assert sorted(order["lstm"]) == ["amp-dense", "tf32-dense"]
    assert order["lstm"] == order["resnet18"]


def test_one_batch_size_shows_nothing(tmp_path, capsys):
    _, found = study(tmp_path, 128)
    assert growths(found) == []
    write(found)
    print_comparison(found)
    assert "batch 128" not in capsys.readouterr().out + (tmp_path / "report.html").read_text() + (tmp_path / "report.md").read_text()


def test_it_is_shown_everywhere(tmp_path, capsys):
    _, found = study(tmp_path, 32, 128, 512)
    write(found)
    print_comparison(found)
    assert "4.00×" in capsys.readouterr().out.split("Speed-up by batch size")[1]
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    assert page.count("<h2>Speed-up by batch size</h2>") == page.count('aria-label="Speed-up by batch size: every model"') == 1
    assert "(plots/all--speedup-batches.png)" in text
    assert (tmp_path / "plots" / "all--speedup-batches.png").is_file()
    events = EventAccumulator(str(tmp_path / "_report"), size_guidance={"tensors": 0, "images": 0}).Reload()
    assert "speedup_by_batch_size" in events.Tags()["images"]
    assert "table/speedup_by_batch_size" in events.Tags()["tensors"]
    write(study(tmp_path, 128)[1])
    assert not (tmp_path / "plots" / "all--speedup-batches.png").exists()


@pytest.mark.slow
def test_a_card_has_it(tmp_path):
    runs, _ = study(tmp_path, 32, 512)
    (tmp_path / "results.csv").write_text(to_csv(runs))
    (tmp_path / "README.md").write_text("# Why?\n\n<!-- results -->\n<!-- end of results -->\n")
    written = update_card(tmp_path)
    assert tmp_path / "plots" / "all--speedup-batches.svg" in written
    assert "### Speed-up by batch size\n\n|  | setting | batch 32 | batch 512 |" in (tmp_path / "README.md").read_text()


def test_a_card_may_show_it_alone_with_the_caveats_of_its_speeds(tmp_path):
    runs, _ = study(tmp_path, 32, 512)
    runs = [replace(run, exclusive=run.exclusive and (run.plain, run.seed) != ("amp-dense", 0)) for run in runs]
    (tmp_path / "results.csv").write_text(to_csv(runs))
    (tmp_path / "README.md").write_text("# Why?\n\n<!-- results show=growth -->\n<!-- end of results -->\n")
    written = update_card(tmp_path)
    assert sorted(path.name for path in written) == ["README.md", "all--speedup-batches.png", "all--speedup-batches.svg"]
    text = (tmp_path / "README.md").read_text()
    assert "| resnet18 on cifar10 | amp-dense | 1.10× " in text
    assert f"both axes logarithmic. All with {STEPS}." in text.replace("\\_", "_")
    assert "test accuracy" not in text
    lost = "amp-dense: speed of 2 of 3 completed runs, without 1: something else used the device"
    assert f"- resnet18 on cifar10, data.batch_size=32; resnet18 on cifar10, data.batch_size=512: {lost}\n" in text.replace("\\_", "_")


def test_a_card_without_two_batch_sizes_says_so(tmp_path):
    runs, _ = study(tmp_path, 32)
    (tmp_path / "results.csv").write_text(to_csv(runs))
    (tmp_path / "README.md").write_text("<!-- results show=growth -->\n<!-- end of results -->\n")
    with pytest.raises(UserError, match="show=growth in its results marker, but no setting has runs at two batch sizes"):
        update_card(tmp_path)
