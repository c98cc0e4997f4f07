"""The output of `profile=true`: a table of the slowest operations, profile.csv with all of them, and what
limits the run.
"""

from pathlib import Path
from typing import Any

from mpx.render.run import CORES
from mpx.render.table import Column, Table, print_table
from mpx.system.csv_file import to_text
from mpx.system.printing import UNKNOWN
from mpx.system.whole_file import write_whole

MAX_OPERATIONS = 12  # rows of the printed table
COLUMNS = ("operation", "calls", "ms", "share", "format", "tensor_cores")


def report_profile(profile: dict[str, Any], folder: Path) -> None:
    """Print the profile, and write profile.csv to `folder`. profile: as mpx.measure.profile records it."""
    rows = profile["operations"]
    if rows:
        write_whole(folder / "profile.csv", to_text(COLUMNS, rows))
        print_table(_table(profile))
        more = f"and {len(rows) - MAX_OPERATIONS} more in profile.csv; " if len(rows) > MAX_OPERATIONS else ""
        print(f"{more}trace: {profile['trace']} (open it at https://ui.perfetto.dev)")
    unknown = f"profile: what limits the run is unknown, since {profile.get('reason')}."
    print(unknown if profile["bound"] is None else profile["sentence"])


def _table(profile: dict[str, Any]) -> Table:
    columns = [Column("kernel" if profile["launches"] is not None else "operation", words=True)]
    columns += [
        Column(head, words=head in ("format", "Tensor Cores")) for head in ("calls", "ms", "share", "format")
    ]
    lines = [
        [
            row["operation"],
            f"{row['calls']:.4g}",
            f"{row['ms']:.3f}",
            f"{row['share']:.1%}",
            row["format"] or UNKNOWN,
        ]
        for row in profile["operations"][:MAX_OPERATIONS]
    ]
    if profile["launches"] is not None:
        columns.append(Column("Tensor Cores", words=True))
        cells = [CORES[row["tensor_cores"]] for row in profile["operations"]]
        lines = [[*line, cell] for line, cell in zip(lines, cells, strict=False)]
    return Table(f"where a step's time goes, of {profile['steps']} steps", columns, lines)
