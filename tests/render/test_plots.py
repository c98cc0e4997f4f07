"""The pictures: what each shows, what it says where there is nothing to show, and that twenty settings can
still be read.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_comparison import made_comparison, made_group, write_curves, write_runs
from made_runs import AMP, CONTROL, compared, only, seeds
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from mpx.compare.comparison import Estimate
from mpx.render.curves import bands, loss_figure
from mpx.render.figures import front_figure, pareto, pictures, seeds_figure
from mpx.render.picture import fit, house_style, inline, styles
from mpx.render.rates import style_of
from mpx.runs.result import metric_of

LONG = "precision.loss_scale.initial={} trainer.gradient_clip_val=1.0"
MANY = (
    "fp32-dense",
    *(f"amp-{sparsity} {LONG.format(2**i)}" for i in range(12) for sparsity in ("dense", "2of4")),
)

WIDE = ("fp32-dense", *(f"amp-dense data.transform=comb_{'comma_' * 12} model.width={i}" for i in range(9)))


def drawn(comparison, group=None):
    made = pictures(group or comparison.groups[0], comparison, styles(comparison))
    return {one.name.rpartition("-")[2]: one for one in made}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    comparison = made_comparison(tmp_path_factory.mktemp("study"), made_group(diverged=("amp-dense",)))
    write_runs(comparison)
    return comparison


@pytest.fixture(scope="module")
def found(study):
    return drawn(study)


def test_all_pictures_of_a_full_study(found):
    bars = {"speedup", "memory", "serve"}  # the time to train stands in for speeds
    assert set(found) == {"front", "seeds", "loss", "numerics", "underflow"} | bars
    for one in found.values():
        assert one.png.startswith(b"\x89PNG")
        ET.fromstring(one.svg)


def test_the_same_data_gives_the_same_files(study, found):
    assert {name: (one.svg, one.png) for name, one in found.items()} == {
        name: (one.svg, one.png) for name, one in drawn(study).items()
    }
    assert "<dc:date>" not in found["front"].svg


def test_what_says_nothing_is_not_drawn(tmp_path):
    """Equal bars, and what no run has."""
    group = made_group(
        ("fp32-dense", "amp-dense"), emulated=True, gradient_underflow=None, gradient_underflow_unscaled=None
    )
    nothing = dict.fromkeys(("serve", "metric")) | {"peak_gib": Estimate(0.5, None, 1)}
    times = {"fp32-dense": Estimate(2.0, None, 1), "amp-dense": Estimate(1.0, None, 1)}
    rows = [replace(row, **nothing, time_to_train_s=times[row.setting]) for row in group.rows]
    assert set(drawn(made_comparison(tmp_path, replace(group, rows=tuple(rows))))) == {"time"}


def test_a_setting_looks_the_same_in_every_group_and_like_no_other(tmp_path):
    comparison = made_comparison(tmp_path, made_group(MANY), made_group(MANY[:5], model="lstm"))
    found = styles(comparison)
    assert set(found) == set(MANY)
    assert len({(style.colour, style.marker) for style in found.values()}) == len(MANY)
    fewer = styles(
        made_comparison(tmp_path, made_group(MANY), made_group(MANY[:5][::-1][1:] + MANY[:1], model="lstm"))
    )
    assert fewer[MANY[0]].colour == found[MANY[0]].colour


@pytest.mark.parametrize("names", [MANY, ("fp32-dense", "amp-" + 30 * "long"), WIDE])
def test_names_neither_overlap_nor_leave_the_picture(tmp_path, names):
    comparison = made_comparison(tmp_path, group := made_group(names, seeds=2))
    with house_style("x"):
        for figure in (
            front_figure(group, styles(comparison)),
            seeds_figure(group, 0.01, styles(comparison)),
        ):
            renderer = FigureCanvasAgg(figure).get_renderer()
            fit(figure)
            figure.draw(renderer)
            boxes = [
                (text.get_text(), text.get_window_extent(renderer))
                for text in figure.findobj(Text)
                if is_one_of(text, names)
            ]
            assert len(boxes) == len(names)
            for i, (text, box) in enumerate(boxes):
                assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text
                assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text
                for other, second in boxes[i + 1 :]:
                    assert not box.padded(-1).overlaps(second.padded(-1)), (text, other)


def is_one_of(text: Text, names) -> bool:
    return text.get_visible() and "".join(text.get_text().split()) in {
        "".join(name.split()) for name in names
    }


def test_an_inline_picture_follows_the_page(found):
    one = found["loss"]
    svg = inline(one)
    root = ET.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert "var(--ink)" in svg
    assert "var(--grid)" in svg
    for colour in ("#1b1f24", "#57606a", "#d0d7de", "#ffffff"):
        assert colour not in svg
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    others = re.findall(r'<(?:clipPath|path) id="([^"]+)"', inline(found["seeds"]))
    assert not set(re.findall(r'<(?:clipPath|path) id="([^"]+)"', svg)) & set(others)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=15), st.booleans())
def test_pareto_front_is_what_none_beats(points, lower):
    """Compared with the definition, point by point; of equal points one may stand for all."""
    sign = -1 if lower else 1

    def beaten(a):
        return any(b != a and b[0] >= a[0] and sign * b[1] >= sign * a[1] for b in points)

    front = [points[i] for i in pareto(points, lower)]
    assert set(front) == {point for point in points if not beaten(point)}
    assert len(front) == len(set(front))
    assert front == sorted(front)


def test_the_front_is_of_one_device_and_one_batch_size(tmp_path):
    """As the speed-up, which is refused between them."""
    larger = seeds("tf32-dense", [0.96, 0.961], [9000, 9001], batch_size=512)
    newer = seeds("fp8-dense", [0.97, 0.971], [9e4, 9e4], device="B200")
    for control in ("fp32-dense", "fp16_true-dense"):  # the second did not run
        comparison = compared([*CONTROL, *AMP, *larger, *newer], control=control)
        group, rows = only(comparison)
        assert all(rows[setting].throughput is not None for setting in ("tf32-dense", "fp8-dense"))
        figure = front_figure(group, styles(comparison))
        assert {text.get_text() for text in figure.legends[0].get_texts()} == {"fp32-dense", "amp-dense"}
        front = drawn(made_comparison(tmp_path, group))["front"]
        assert front.caption.endswith("settings whose speed was measured under other conditions.")
    group, _ = only(compared([*CONTROL, *AMP]))
    assert drawn(made_comparison(tmp_path, group))["front"].caption.endswith("(Pareto front).")


def test_pictures_say_what_they_leave_out(tmp_path):
    settings = ("fp32-dense", *(f"amp-2of4 model.width={i}" for i in range(9)))
    comparison = made_comparison(tmp_path, group := made_group(settings, seeds=2, diverged=(settings[3],)))
    write_runs(comparison)
    found = drawn(comparison)
    assert found["loss"].caption.endswith("The control and the 7 settings next to it in the table.")
    assert f"{settings[3]} (1 diverged)" in found["front"].svg
    rows = tuple(replace(row, speedup=None) for row in group.rows)
    alone = replace(group, control=None, rows=rows)
    assert drawn(comparison, alone)["loss"].caption.endswith("The first 8 settings of the table.")


def test_the_metric_of_a_project_is_drawn_and_flat_lines_are_not(tmp_path):
    write_curves(tmp_path, {"train_loss": [(0, 0.5), (9, 0.5)], "val_dice": [(0, 0.5), (9, 0.96)]})
    curves = bands({"fp32-dense": [tmp_path]})
    (axes,) = loss_figure(curves, metric_of("val/dice", "max"), {"fp32-dense": style_of(0)}).axes
    assert (axes.get_title(), axes.get_ylim()[1] <= 1) == ("val dice", True)
    assert loss_figure(curves, metric_of("train/loss", "min"), {}) is None
