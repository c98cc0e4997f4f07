"""Whether Hugging Face's hub of models and tokenizers can be reached."""

import socket
import urllib.request
from urllib.parse import urlparse

from huggingface_hub import constants


def hub_answers() -> bool:
    """Whether the hub accepts a connection within 3 s. Its own client would retry for much longer on a machine without network."""
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
