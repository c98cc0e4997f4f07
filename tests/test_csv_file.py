"""CSV files: no cell is a formula, each reads back as it was, and a file that is cut off is refused."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpx.system.csv_file import BadRow, rows_of, to_text

CELLS = st.lists(st.text(st.sampled_from("'=+-@\t\n\"1.5e,a\x1b"), max_size=6), min_size=2, max_size=2)


@given(CELLS)
def test_any_text_reads_back_and_none_is_a_formula(cells):
    text = to_text(("a", "=b"), [dict(zip(("a", "=b"), cells, strict=True))])
    ((_, row),) = rows_of(text)
    assert row == dict(zip(("a", "=b"), cells, strict=True))
    for cell in (cell for line in csv.reader(io.StringIO(text, newline="")) for cell in line):
        assert not cell.startswith(("=", "@", "\t", "\r"))
        if cell.startswith(("+", "-")):
            float(cell)


@pytest.mark.parametrize("value", [-1.5, "-1.5", "+2", "-1e-05", "dense", "", 3])
def test_numbers_and_plain_text_stay_as_they_are(value):
    assert to_text(("a", "b"), [{"a": value, "b": 1}]) == f"a,b\n{value},1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,4", "line 3: it is cut off, since no line break ends it"),
        ("a,b\n1,2\n3\n", "line 3: it has 1 fields, the header 2"),
        ("a,b\n1,2,3\n", "line 2: it has 3 fields, the header 2"),
        ('a,b\n1,"2', "line 2: unexpected end of data"),
    ],
)
def test_a_file_that_is_cut_off_is_refused_with_its_line(text, message):
    with pytest.raises(BadRow) as error:
        list(rows_of(text))
    assert str(error.value) == message
