"""Every decision and verdict of committed studies: python decisions.py RESULTS.csv … prints them as JSON."""

import contextlib
import io
import json
import sys

import mpx

decided = {}
for results in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()):
        comparison = mpx.judge(results=results, margin=0.005)
    study = "/".join(results.split("/")[-2:])
    for group in comparison.groups:
        changes = getattr(group, "changes", None) or getattr(
            group, "shared", {}
        )  # as older checkouts call it
        name = f"{study}: {group.model} {group.data} {dict(changes)}"
        decided[name] = {"train": group.train_verdict, "serve": group.serve_verdict} | {
            row.setting: {
                "decision": None if row.decision is None else str(row.decision.verdict),
                "p": None
                if row.decision is None or row.decision.p_holm is None
                else round(row.decision.p_holm, 12),
                "speedup": None if row.speedup is None else round(row.speedup.ratio, 12),
            }
            for row in group.rows
        }
print(json.dumps(decided))
