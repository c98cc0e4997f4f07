"""A comparison as the last value of a notebook's cell: its sentences, table and pictures."""

import base64
import re

from made_runs import AMP, CONTROL, compared, only


def test_a_notebook_shows_sentences_table_and_pictures(tmp_path):
    comparison = compared([*CONTROL, *AMP], folder=tmp_path)
    group, _ = only(comparison)
    page = comparison._repr_html_()
    assert page.index(group.train_verdict) < page.index(group.evidence) < page.index("<table>")
    assert [page.count(tag) for tag in ("<tr>", "<td>amp-dense</td>", "<script")] == [3, 1, 0]
    pictures = re.findall(r'<img alt="([^"]+)"[^>]*src="data:image/png;base64,([^"]+)"', page)
    assert "Test accuracy against throughput" in [name for name, _ in pictures]
    assert all(base64.b64decode(data).startswith(b"\x89PNG") for _, data in pictures)
