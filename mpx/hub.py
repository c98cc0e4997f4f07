"""Whether the hub of models and tokenizers can be asked."""

import socket
import urllib.request
from urllib.parse import urlparse

from huggingface_hub import constants


def hub_answers() -> bool:
    """Whether the hub's machine takes a connection. Its client would retry for 23 s on a machine without network."""
    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True  # only the proxy knows
    try:
        address = urlparse(constants.ENDPOINT)
        socket.create_connection((address.hostname, address.port or 443), timeout=3).close()
    except OSError:
        return False
    return True
