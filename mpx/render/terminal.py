"""Print a comparison on the terminal: accuracy, speed, verdicts and notes of each group, then the runs left out."""

from mpx.compare.comparison import Comparison
from mpx.compare.words import paragraphs, title
from mpx.printing import shown
from mpx.render.comparison_tables import growth_table, served_tables, settings_table
from mpx.render.table import console, print_table

ACCURACY = {
    "setting": "setting", "runs": "seeds", "diverged": "diverged", "metric": "", "difference": "difference to the control",
    "population": "for the population", "decision": "decision", "p": "p, Holm",
}  # fmt: skip
SPEED = {
    "setting": "setting", "rate": "samples/s", "speedup": "speed-up", "peak_gib": "peak GiB", "seconds": "time to train",
    "skipped": "skipped", "underflow_mean": "underflow", "density": "density",
}  # fmt: skip
MAX_WAYS = 3  # to serve, that fit side by side
MAX_LEFT_OUT = 20  # runs that are listed


def print_comparison(comparison: Comparison) -> None:
    out = console()
    for part in paragraphs(comparison.note):
        out.print(shown(part), end="\n\n")
    for group in comparison.groups:
        print_table(settings_table(title(group), group, ACCURACY, {}), framed=False)
        speeds = settings_table("", group, SPEED, {})
        if len(speeds.columns) > 1:
            print_table(speeds, framed=False)
        for served in served_tables(group, {}, MAX_WAYS):
            print_table(served, framed=False)
        for sentence in filter(None, (group.train_verdict, group.time_verdict, group.serve_verdict)):
            out.print(shown(sentence), style="bold")
        for note in group.notes:
            out.print(shown(f"· {note}"))
        out.print()
    growth = growth_table("Speed-up by batch size", comparison, {}, of="model")
    if growth.rows:
        print_table(growth, framed=False)
    if left_out := comparison.left_out:
        out.print(f"{len(left_out)} left out:")
    for folder, reason in left_out[:MAX_LEFT_OUT]:
        out.print(shown(f"· {folder}: {reason}"))
    if len(left_out) > MAX_LEFT_OUT:
        out.print(f"· and {len(left_out) - MAX_LEFT_OUT} more")
