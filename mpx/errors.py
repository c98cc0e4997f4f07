"""The errors that a user sees: one line each, which says what was wrong and how to mend it."""

import difflib
import errno
from collections.abc import Iterable

MISTAKE = 2  # exit code of a command whose settings are refused
PIPE_CLOSED = 141  # of one that prints into a pipe that nobody reads, as a shell's 128 + SIGPIPE
# of an OSError: also a quota, and a limit on the size of a file
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(ValueError):
    """A mistake that the user can mend. Its text is one line: the key, its value, what is allowed, how to fix
    it.
    """


class InUse(UserError):
    """Another process trains this run."""


def nearest(word: str, options: Iterable[str]) -> str:
    """' Did you mean X?' with the option X that is most similar to `word`, or '' if none is similar."""
    found = difflib.get_close_matches(word, list(options), n=1, cutoff=0.5)
    return f" Did you mean {found[0]}?" if found else ""


def nearest_key(word: str, keys: Iterable[str]) -> str:
    """Like `nearest`, and for a key without its group: lr suggests optimizer.lr."""
    keys = list(keys)
    ends = [key for key in keys if key.split(".")[-1] == word and key != word]
    if ends:
        return f" Did you mean {' or '.join(ends)}?"
    if (like := nearest(word, keys)) or "." in word:
        return like
    return (
        nearest_key(found[0], keys)
        if (found := difflib.get_close_matches(word, [key.split(".")[-1] for key in keys], 1))
        else ""
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" .:")


def one_line(error: BaseException) -> str:
    """The text of an error whose lines belong together, such as a compiler's, in one line of at most 200
    letters.

    What torch.compile adds to each of its errors, how to see more, is left out.
    """
    return " ".join(str(error).partition("Set TORCHDYNAMO_VERBOSE=1")[0].split())[:200]


def causes(error: BaseException | None) -> list[BaseException]:
    """The error, the one that led to it, and so on."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


class Diverged(RuntimeError):
    """Training produced an infinite or NaN loss. Its text says when, and what to try."""
