#!/usr/bin/env python3
"""The lines of bench/run.sh, on stdin, as a table in Markdown."""
import json
import sys


def number(value):
    return f"{value:.4g}" if abs(value) < 10000 else f"{value:,.0f}"


rows = []
for line in sys.stdin:
    try:
        found = json.loads(line)
    except ValueError:
        continue
    if "ratio" not in found:
        continue
    goal = ("≤ " if found.get("less_is_better") else "≥ ") + number(found["goal"])
    rows.append((found["id"], found["case"], f"{number(found['value'])} {found['unit']}",
                 f"{number(found['limit'])}: {found['limit_is']}", f"{found['ratio']:.3g}", goal,
                 "met" if found["met"] else "missed"))
print("| yardstick | case | value | limit or rival | ratio | goal | |\n|---|---|---|---|---|---|---|")
for row in rows:
    print("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |")
