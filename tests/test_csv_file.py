"""CSV files: each cell reads back as it was, and a file that is cut off is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpx.system.whole_file import BadRow, rows_of, to_text

CELLS = st.lists(st.text(st.sampled_from("'=+-@\t\n\"1.5e,a\x1b"), max_size=6), min_size=2, max_size=2)


@given(CELLS)
def test_any_text_reads_back(cells):
    ((_, row),) = rows_of(to_text(("a", "=b"), [dict(zip(("a", "=b"), cells, strict=True))]))
    assert row == dict(zip(("a", "=b"), cells, strict=True))


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
