"""The one error a user sees: a single line that says what was wrong and how to mend it."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can mend. Its text is one line: the key, what it was, what is allowed, how to fix it."""


def nearest(word: str, options: Iterable[str]) -> str:
    """The option most like `word` as ' Did you mean X?', or '' when none is close."""
    found = difflib.get_close_matches(word, list(options), n=1, cutoff=0.5)
    return f" Did you mean {found[0]}?" if found else ""


class Diverged(RuntimeError):
    """Training produced an infinite or NaN loss. Its text says when, and what to try."""
