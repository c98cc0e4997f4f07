"""Downloads against a server on this machine, and what happens without a network."""

import hashlib
import http.server
import io
import socket
import threading
import time
import urllib.request
import zipfile

import pytest

import mpx.data
from mpx.data import files, text_sets
from mpx.errors import UserError

CONTENT = {"/good": b"content", "/other": b"something else", "/cut": b"the first half"}


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in CONTENT else 404)
            if self.path == "/cut":
                self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(CONTENT.get(self.path, b""))

        def log_message(self, *_):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


SHA = hashlib.sha256(b"content").hexdigest()


def test_a_good_file_is_kept_whole(server, tmp_path):
    path = tmp_path / "new" / "file"
    files.download(f"{server}/good", path, SHA)
    assert path.read_bytes() == b"content"
    assert not [p for p in path.parent.iterdir() if p != path and "lock" not in p.name]
    path.write_bytes(b"mine")
    files.download(f"{server}/good", path, SHA)
    assert path.read_bytes() == b"mine", "a file that is there is not fetched again"


@pytest.mark.parametrize(
    ("page", "reason"),
    [("other", "has SHA-256 .* expected"), ("gone", "HTTP Error 404"), ("cut", r"IncompleteRead\(14 bytes")],
)
def test_a_wrong_file_is_not_kept(server, tmp_path, page, reason):
    with pytest.raises(
        UserError, match=rf"^data\.root: .*file is missing and the download failed \(.*{reason}"
    ):
        files.download(f"{server}/{page}", tmp_path / "file", SHA)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("name", "file"),
    [("mnist", "MNIST/raw/train-images-idx3-ubyte.gz"), ("sst2", "sst2/train.tsv")],
)
def test_without_a_network_the_missing_file_is_named_at_once(config, monkeypatch, name, file):
    def offline(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    start = time.perf_counter()
    with pytest.raises(
        UserError,
        match=rf"^data\.root: .*{file} is missing and the download failed "
        r"\(.*\): put the file",
    ) as caught:
        mpx.data.load(config(name))
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 15
    assert socket.getdefaulttimeout() is None


def test_sst2_archive_member_and_form():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SST-2/train.tsv", "sentence\tlabel\n")
    assert text_sets.member(packed.getvalue(), "SST-2/train.tsv") == b"sentence\tlabel\n"
    start = 30 + len("SST-2/train.tsv")  # of the compressed bytes
    overwritten = packed.getvalue()[:start] + b"\xff" * 8 + packed.getvalue()[start + 8 :]
    for content, name in (
        (packed.getvalue(), "SST-2/dev.tsv"),
        (b"no zip", "SST-2/train.tsv"),
        (overwritten, "SST-2/train.tsv"),
    ):
        with pytest.raises(OSError, match="the archive is damaged"):
            text_sets.member(content, name)
    raw = b"1\ta writer\\/director -lrb- at  $ 100 ### million -rrb- .\n"
    assert text_sets.glue_style(raw) == b"sentence\tlabel\na writer/director ( at $ 100 million ) . \t1\n"


def test_sst2_checksums_are_those_of_the_real_files(real):
    for name, digest in text_sets.SHA256.items():
        assert hashlib.sha256((real("sst2") / name).read_bytes()).hexdigest() == digest
