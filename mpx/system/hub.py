"""Hugging Face's hub of models and tokenizers, and what its libraries print."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlparse

from huggingface_hub import constants


def hub_answers() -> bool:
    """Whether the hub accepts a connection within 3 s. Its own client would retry for much longer on a
    machine without network.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True  # only the proxy can tell
    try:
        address = urlparse(constants.ENDPOINT)
        socket.create_connection((address.hostname, address.port or 443), timeout=3).close()
    except OSError:
        return False
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers, which draws a bar as it reads weights and warns of what mpx asks for: a
    classifier with random weights.
    """
    from transformers.utils import logging

    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()
