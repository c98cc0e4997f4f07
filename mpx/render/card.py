"""Generate the results section of a card, experiments/<question>/README.md, from the results.csv beside it.

The section lies between the markers `<!-- results -->` and `<!-- end of results -->`. The first marker may set keys of
`python -m mpx.compare`, as in `<!-- results control=amp-dense margin=0.005 -->`. `show=growth` shows only speed-ups by batch size and the
notes, for a study that trains too few steps for a meaningful accuracy.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mpx.compare.aggregate import compare
from mpx.compare.batch_scaling import shared
from mpx.compare.collect import read_tables
from mpx.compare.commands import DEFAULTS
from mpx.compare.comparison import Comparison
from mpx.compare.names import without
from mpx.compare.words import title
from mpx.errors import UserError
from mpx.render.markdown import PLOTS, about, figures, group_table, growth_part, served_part, verdicts
from mpx.render.plots.batch_scaling import growth_picture
from mpx.render.plots.colours import styles
from mpx.render.plots.draw import CARD_PARTS, pictures
from mpx.render.plots.picture import Picture
from mpx.render.report import save_all
from mpx.render.table import escaped
from mpx.settings.compare import check_compare
from mpx.whole_file import write_whole

SHOW, SHOWN = "show", ("all", "growth")
MARKS = re.compile(r"(<!-- results((?: \w+=[^\s>]+)*) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def update_card(folder: Path) -> list[Path]:
    """Rewrite the results section of the card in `folder`, and its plots. Raises UserError without results.csv, card or markers."""
    card, results = folder / "README.md", folder / "results.csv"
    for path in (card, results):
        if not path.is_file():
            raise UserError(f"{path} is not there. A card is a folder below experiments/ with a README.md and a results.csv.")
    text = card.read_text(encoding="utf-8")
    found = MARKS.search(text)
    if found is None:
        raise UserError(f"{card} has no place for results: put a line <!-- results --> and a line <!-- end of results --> into it.")
    how = options(found[2], card)
    show = how.pop(SHOW)
    comparison = compare_file(results, how)
    by_setting = styles(comparison)
    growth = growth_picture(comparison)
    if show == "growth" and growth is None:
        raise UserError(f"{card}: {SHOW}=growth in its results marker, but no setting has runs at two batch sizes in {results}.")
    drawn = [] if show == "growth" else [pictures(group, comparison, {}, by_setting, CARD_PARTS) for group in comparison.groups]
    plots = save_all([one for group in drawn for one in group] + ([growth] if growth else []), folder / PLOTS)
    shown = growth_alone(comparison, growth) if show == "growth" else results_part(comparison, drawn, growth)
    part = f"{found[1]}\n{shown}\n\n{found[3]}"
    write_whole(card, text[: found.start()] + part + text[found.end() :])
    return [card, *plots]


def options(given: str, card: Path) -> dict[str, str | float]:
    """The keys that the first marker sets, and the defaults of the others."""
    found: dict[str, str | float] = DEFAULTS | {SHOW: "all"}
    for word in given.split():
        key, _, value = word.partition("=")
        if key not in found:
            raise UserError(f"{card}: {word} in its results marker is not a key. Use one of {', '.join(found)}.")
        found[key] = value
        with suppress(ValueError):
            found[key] = float(value)
    if found[SHOW] not in SHOWN:
        raise UserError(f"{card}: {SHOW}={found[SHOW]} in its results marker must be one of {', '.join(SHOWN)}.")
    try:
        check_compare({key: value for key, value in found.items() if key != SHOW} | {"results": None})
    except UserError as error:
        raise UserError(f"{card}, in its results marker: {error}") from error
    return found


def compare_file(results: Path, how: dict[str, str | float]) -> Comparison:
    runs, _ = read_tables(results)
    return compare(runs, study=results.parent.name, folder=results.parent, **how)


def results_part(comparison: Comparison, drawn: Sequence[Sequence[Picture]], growth: Picture | None) -> str:
    """Verdicts, speed-ups by batch size, and a table with plots for each model and data set."""
    parts = [verdicts(comparison), growth_part(comparison, growth, "###")]
    for group, pictures_of_group in zip(comparison.groups, drawn, strict=True):
        parts += [
            f"### {escaped(title(group))}",
            about(group, comparison),
            group_table(group),
            served_part(group),
            figures(pictures_of_group, reasons=False),
        ]
    return "\n\n".join(part for part in parts if part)


def growth_alone(comparison: Comparison, growth: Picture) -> str:
    """Speed-ups by batch size, and each note of the groups once, with the groups that have it."""
    having: dict[str, list[str]] = defaultdict(list)
    for group in comparison.groups:
        for note in group.notes:
            having[note].append(title(replace(group, changes=without(group.changes, shared(comparison)))))
    notes = "\n".join(f"- {escaped('; '.join(groups))}: {escaped(note)}" for note, groups in having.items())
    return "\n\n".join(filter(None, (growth_part(comparison, growth, "###"), notes)))
