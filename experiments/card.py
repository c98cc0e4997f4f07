"""Write the results part of a card anew from its committed results.csv, so that no figure in it is typed by
hand.

$ python experiments/card.py grid             # experiments/grid/README.md and plots/
$ python experiments/card.py grid pretrained  # several

A study becomes results.csv by `python -m mpx.compare study=NAME`, which writes it to outputs/NAME/. The part
lies between the markers `<!-- results -->` and `<!-- end of results -->`. The first marker may set keys of
`python -m mpx.compare`, as in `<!-- results control=amp-dense margin=0.005 -->`.
"""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from collecting import Arguments

from mpx.compare.aggregate import compare, question
from mpx.compare.collect import newest
from mpx.compare.comparison import Comparison
from mpx.compare.table import read_results
from mpx.compare.words import title
from mpx.errors import UserError
from mpx.render.figures import pictures
from mpx.render.picture import Picture, save, styles
from mpx.render.report import PLOTS, about, figures, group_table, served_part, verdicts
from mpx.render.table import escaped
from mpx.settings.compare import DEFAULTS, LISTING, check_compare
from mpx.system.whole_file import write_whole

MARKS = re.compile(r"(<!-- results((?: \w+=[^\s>]+)*) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def update_card(folder: Path) -> list[Path]:
    """Rewrite the results section of the card in `folder`, and its plots. Raises UserError without
    results.csv, card or markers.
    """
    card, results = folder / "README.md", folder / "results.csv"
    for path in (card, results):
        if not path.is_file():
            raise UserError(
                f"{path} is not there. A card is a folder below experiments/ with a README.md "
                "and a results.csv."
            )
    text = card.read_text(encoding="utf-8")
    found = MARKS.search(text)
    if found is None:
        raise UserError(
            f"{card} has no place for results: put a line <!-- results --> and a line <!-- end "
            "of results --> into it."
        )
    comparison = compare_file(results, options(found[2], card))
    by_setting = styles(comparison)
    drawn = [pictures(group, comparison, by_setting) for group in comparison.groups]
    plots = [path for group in drawn for one in group for path in save(one, folder / PLOTS)]
    part = f"{found[1]}\n{results_part(comparison, drawn)}\n\n{found[3]}"
    write_whole(card, text[: found.start()] + part + text[found.end() :])
    return [card, *plots]


def options(given: str, card: Path) -> dict[str, str | float]:
    """The keys that the first marker sets, and the defaults of the others."""
    found: dict[str, str | float] = dict(DEFAULTS)
    for word in given.split():
        key, _, value = word.partition("=")
        if key not in found:
            raise UserError(
                f"{card}: {word} in its results marker is not a key. Use one of {', '.join(found)}."
            )
        found[key] = value
        with suppress(ValueError):
            found[key] = float(value)
    try:
        check_compare(dict.fromkeys(("results", *LISTING)) | {"list": False} | found)
    except UserError as error:
        raise UserError(f"{card}, in its results marker: {error}") from error
    return found


def compare_file(results: Path, how: dict[str, str | float]) -> Comparison:
    runs, _ = newest(read_results(results))
    return compare(runs, question(**how), study=results.parent.name, folder=results.parent)


def results_part(comparison: Comparison, drawn: Sequence[Sequence[Picture]]) -> str:
    """Verdicts, and a table with plots for each model and data set."""
    parts = [verdicts(comparison)]
    for group, pictures_of_group in zip(comparison.groups, drawn, strict=True):
        parts += [
            f"### {escaped(title(group))}",
            about(group, comparison),
            group_table(group),
            served_part(group),
            figures(pictures_of_group),
        ]
    return "\n\n".join(part for part in parts if part)


def main() -> int:
    parser = Arguments()
    parser.add_argument("questions", nargs="+")
    for name in parser.parse_args().questions:
        try:
            written = update_card(Path(__file__).parent / name)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{written[0]}: results of {len(written) // 2} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
