"""Keep compiled code apart that torch.compile's cache on the disk takes for the same.

Its key lacks:

- the CPU's instructions. Code for a CPU with AVX-512 is reused on one with AVX2, where it leaves out half of
  the values (torch 2.11, 2.14).
- autocast's format. After a run in BF16, a run in FP16 computes in BF16 (torch 2.11 and 2.12; fixed by
  https://github.com/pytorch/pytorch/pull/181564).

Neither gives an error.
"""

from torch.compiler import config

_parts: dict[str, str] = {}
_added = ""  # behind the user's own tag, which they may set at any time


def keep_apart(**parts: object) -> None:
    """From now on, code is cached for these values, as in `autocast=torch.float16`. Others that were given
    before remain.
    """
    global _added
    words = {name: str(value) for name, value in parts.items()}
    tag = config.cache_key_tag
    if words.items() <= _parts.items() and tag.endswith(_added):  # the precision plugin asks at every step
        return
    _parts.update(words)
    given, _added = (
        tag.removesuffix(_added),
        "".join(f" {name}={word}" for name, word in sorted(_parts.items())),
    )
    config.cache_key_tag = given + _added
