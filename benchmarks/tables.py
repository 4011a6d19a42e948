"""How every benchmark prints its tables."""

import sys


def show(title: str, header: list[str], table: list[list[str]]) -> None:
    widths = [max(len(line[i]) for line in [header, *table]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, ["-" * width for width in widths], *table]:
        print("| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |")
    sys.stdout.flush()
