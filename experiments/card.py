"""Write the results part of a card anew from its committed results.csv, so that no figure in it is typed by hand.

$ python experiments/card.py grid             # experiments/grid/README.md and plots/
$ python experiments/card.py grid batch_size  # several

A study becomes results.csv by `python -m mpx.compare study=NAME`, which writes it to outputs/NAME/.
"""

import sys
from pathlib import Path

from collecting import Arguments

from mpx.errors import UserError
from mpx.render.card import update_card


def main() -> int:
    parser = Arguments()
    parser.add_argument("questions", nargs="+")
    for question in parser.parse_args().questions:
        try:
            written = update_card(Path(__file__).parent / question)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{written[0]}: results of {len(written) // 2} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
