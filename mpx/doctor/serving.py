"""How this machine serves: each number format by which backends, and 2:4 weights in which formats."""

from collections.abc import Mapping

import torch
from omegaconf import OmegaConf

from mpx.deploy.backends import lacking
from mpx.deploy.build import no_instructions
from mpx.deploy.kernels import no_2of4
from mpx.doctor.training import name_of
from mpx.render.table import Table, words
from mpx.settings.deploy import FORMATS
from mpx.settings.extras import CONF
from mpx.sparsity.kernels import unsupported_device, unsupported_pattern


def patterns(device: torch.device) -> Table:
    """A row for each choice of sparsity=. Masks are plain products, so every device trains with every pattern."""
    rows = []
    for path in sorted((CONF / "sparsity").glob("*.yaml")):
        rows.append((path.stem, "yes", *_sparse(OmegaConf.load(path).pattern, device)))
    return Table(f"sparsity= on {name_of(device)}", words("pattern", "trains", "sparse kernels serve", "why not"), rows)


def _sparse(pattern: str, device: torch.device) -> tuple[str, str]:
    """(formats in which sparse kernels serve the pattern, why not in the others)"""
    if pattern == "dense":
        return "", ""
    if (reason := unsupported_pattern(pattern)) is not None:
        return "–", reason
    if (reason := unsupported_device(device)) is not None:
        return "–", reason
    return _split({fmt: no_2of4(fmt, device) for fmt in FORMATS if no_instructions(fmt, device) is None})


def formats(device: torch.device) -> Table:
    """A row for each format= of mpx.deploy."""
    rows = []
    for fmt in FORMATS:
        reason = no_instructions(fmt, device)
        rows.append((fmt, *(("–", reason) if reason else _split(lacking(fmt, device)))))
    return Table(f"mpx.deploy on {name_of(device)}", words("format=", "backend=", "why not the others"), rows)


def _split(reasons: Mapping[str, str | None]) -> tuple[str, str]:
    """(names without a reason, the reasons with the names that they concern)"""
    against: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if reason is not None:
            against.setdefault(reason, []).append(name)
    there = [name for name, reason in reasons.items() if reason is None]
    return ", ".join(there) or "–", "; ".join(f"{', '.join(names)}: {reason}" for reason, names in against.items())
