"""The jobs of one call. Each serves one run in one format with one kind of weights. A failed job does not stop the others."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any

from mpx.deploy.record import CARD, EXPORTS, ROW_KEY, Row, add_row, check_writable, completed_run, own_files
from mpx.errors import UserError
from mpx.imports import heavy
from mpx.machine import keep_within_quota
from mpx.runs.folder import DEPLOYED
from mpx.settings.deploy import check_export, listed
from mpx.settings.reachable import no_gpu, require_gpu


def serve_all(
    run: str | None, accelerator: str, format: str | list[str], weights: str | list[str], out: str | None, ckpt: str | None,
    model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **options,
) -> tuple[list[tuple[str, Row]], int]:  # fmt: skip
    """Measure, write and show each job. Returns (run's folder, row) of each, and the number of failed jobs.

    Heavy imports start after the settings and the runs' records have been checked. Raises UserError if the only job fails.
    """
    runs = [None] if run is None else _runs(run)
    formats, kinds, exports = listed(format), listed(weights), listed(options["export"])
    attempts = Attempts(alone=len(runs) * len(formats) * len(kinds) == 1)
    formats = attempts.passing(formats, lambda fmt: check_export(exports, fmt))
    records = {}
    for name in runs:
        with attempts.next():
            folder, record = own_files(model, data, ckpt, out) if name is None else completed_run(name)
            check_writable(folder, [CARD] if ckpt is None else [], [EXPORTS] if exports else [])
            records[folder] = record
    require_gpu("accelerator", accelerator, there=not no_gpu())
    formats = attempts.passing(formats, lambda fmt: _check_machine(fmt, accelerator, options["backend"], exports))
    rows = []
    for (folder, record), (fmt, kind) in product(records.items(), product(formats, kinds)):
        with attempts.next(f"{folder} format={fmt} weights={kind}: "):
            rows.append((str(folder), _serve(folder, record, accelerator, format=fmt, weights=kind, ckpt=ckpt, **options)))
    return rows, attempts.failed


def _serve(folder: Path, record: dict[str, Any], accelerator: str, ckpt: str | None, **options) -> Row:
    with heavy():
        from mpx.deploy.card import write_card
        from mpx.deploy.export import write
        from mpx.deploy.serve import serve
        from mpx.deploy.show import replaced, show
        from mpx.measure.devices import chosen

    keep_within_quota(1)
    device = chosen(accelerator)
    row, files = serve(folder, record, device, lambda part: print(f"measuring {part} …", file=sys.stderr, flush=True), ckpt=ckpt, **options)
    unwritten = None
    try:
        row["exports"] = write(folder, "-".join(row[key] for key in ROW_KEY), files)
    except UserError as error:  # the figures are kept
        row["exports"], unwritten = {}, error
    if ckpt is not None:
        row |= {"ckpt": ckpt, "config": record["config"]}
    show(row, record)  # first, since the folder may have become full
    earlier = add_row(folder, row)
    if ckpt is None:
        write_card(folder, record)
    print(f"written to {folder / DEPLOYED}{f' and {CARD}' if ckpt is None else ''}")
    if earlier is not None:
        print(replaced(earlier))
    if unwritten is not None:
        raise unwritten
    return row


def _check_machine(fmt: str, accelerator: str, backend: str, exports: list[str]) -> None:
    with heavy():
        from mpx.deploy.serve import possible
        from mpx.measure.devices import chosen

    possible(fmt, backend, exports, chosen(accelerator))


class Attempts:
    """Prints and counts the errors of jobs. alone: there is only one job, whose error is raised instead."""

    def __init__(self, alone: bool):
        self.alone, self.failed = alone, 0

    def passing(self, formats: list[str], check: Callable[[str], object]) -> list[str]:
        """The formats for which `check` raises no UserError."""
        found = []
        for fmt in formats:
            with self.next(f"format={fmt}: "):
                check(fmt)
                found.append(fmt)
        return found

    @contextmanager
    def next(self, job: str = "") -> Iterator[None]:
        """job: begins the line of an error, whose own text may begin with the job's last words."""
        try:
            yield
        except UserError as error:
            if self.alone:
                raise
            self.failed += 1
            where = job.removesuffix(f"{str(error).partition(': ')[0]}: ")
            print(f"error: {' '.join(f'{where}{error}'.split())}", file=sys.stderr, flush=True)


def _runs(run: str) -> list[str]:
    """`run`, or the folders that match it if it is a pattern. Raises UserError if none does."""
    if "*" not in run or os.path.isdir(run):
        return [run]
    found = [name for name in sorted(glob(run)) if os.path.isdir(name)]
    if not found:
        raise UserError(
            f"run={run} matches no folder (seen from {Path.cwd()}). Give the folder of a run, or a pattern as outputs/*/*/seed*."
        )
    return found
