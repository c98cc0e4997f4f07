"""Download SST-2. Every file is checked against a known SHA-256.

train.tsv and dev.tsv are GLUE's. GLUE withholds the test labels, so the test set is the Stanford treebank's, rewritten in the same form
(`sentence<TAB>label`, plain brackets).
"""

import io
import zipfile
import zlib
from pathlib import Path

from mpx.data import download
from mpx.data.files import find

GLUE = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
LABELLED = "https://raw.githubusercontent.com/YJiangcm/SST-2-sentiment-analysis/ca3869fa59a56d316e73b41074abcb0226886de8/data/test.tsv"
TEST = "test_labelled_glue_style.tsv"
SHA256 = {
    "train.tsv": "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
    "dev.tsv": "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
    TEST: "2762deec34145e818e668ed8a74a59d903460f74db8b436cc940ed02965ab6b9",
}


def fetch_sst2(where: Path) -> None:
    """Download the files that are missing in `where`. Raises UserError."""
    for name in ("train.tsv", "dev.tsv"):
        if find(where, name) is None:
            download.file(GLUE, where / name, SHA256[name], convert=lambda content, name=name: member(content, f"SST-2/{name}"))
    if find(where, TEST, "test.tsv") is None:
        download.file(LABELLED, where / TEST, SHA256[TEST], convert=glue_style)


def member(content: bytes, name: str) -> bytes:
    """One file of a zip archive. Raises OSError if it is missing or the archive is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise OSError(f"the archive is damaged: {error}") from error


def glue_style(content: bytes) -> bytes:
    """Rewrite `label<TAB>sentence` lines with the treebank's escapes as GLUE has them: a header, then `sentence <TAB>label`."""
    lines = ["sentence\tlabel"]
    for row in content.decode(errors="replace").splitlines():  # what is not text fails the check of the SHA-256
        label, _, sentence = row.partition("\t")
        for old, new in (("\\/", "/"), ("-lrb-", "("), ("-rrb-", ")"), (" ### ", " ")):
            sentence = sentence.replace(old, new)
        lines.append(f"{' '.join(sentence.split())} \t{label}")
    return ("\n".join(lines) + "\n").encode()
