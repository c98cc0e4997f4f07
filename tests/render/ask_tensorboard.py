"""A real TensorBoard on a folder of logs, and questions to its HTTP API."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tensorboard(logs: Path) -> Iterator[Callable]:
    """Yields ask(path below /data, body=None): the JSON answer of the running server, or bytes of another
    type. ask.page: its address.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(logs),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    process = subprocess.Popen(
        [*command, "--load_fast=false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def ask(path, body=None):
        return _ask(f"{ask.page}data/{path}", body)

    ask.page = f"http://127.0.0.1:{port}/"
    try:
        yield ask
    finally:
        process.terminate()
        process.wait(10)


def _ask(url: str, body=None, patience_s: float = 60):
    """The answer, once the server is up and has read the logs."""
    data = None if body is None else json.dumps(body).encode()
    deadline = time.monotonic() + patience_s
    while True:
        try:
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                found = answer.read()
                return json.loads(found) if "json" in answer.headers["Content-Type"] else found
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
