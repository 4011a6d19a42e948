"""Show what the demo selected, beside the same number of the best pages: how many are spam, poor, or near-copies.

The pipeline does not see `truth.parquet`, from which this table is made. Run from the repository after `make demo`:
python -m data_samples.outcome
"""

import sys
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import fineweb_mask as fm

TRUTH = Path(__file__).parent / "truth.parquet"
ELIGIBLE = """
SELECT shard, source_row AS row, quality, selected
FROM documents JOIN scores USING (shard, row) JOIN masks USING (shard, row) WHERE block IS NOT NULL
"""
PAGES = """
SELECT topic, is_spam, grade, coalesce(near_duplicate_of, id, concat(shard, '/', row)) AS family,
    selected, row_number() OVER (ORDER BY quality DESC) AS place
FROM pages JOIN truth USING (shard, row)
"""
MEASURES = """
WITH shares AS (SELECT count(*) / sum(count(*)) OVER () AS share FROM chosen GROUP BY topic)
SELECT count(*), avg(is_spam::INT), avg((grade = 0)::INT), avg((copies > 1)::INT),
    (SELECT exp(-sum(share * ln(share))) FROM shares)
FROM (SELECT *, count(*) OVER (PARTITION BY family) AS copies FROM chosen)
"""


class Outcome(NamedTuple):
    """What is known of a set of pages; all but the first and the last are shares."""

    pages: int
    spam: float
    poor: float  # made poorly for their kind
    near_copies: float  # with a near-copy in the same set
    topics: float  # the effective number: the exponential of their entropy


def outcomes(workspace: str | Path) -> dict[str, Outcome]:
    """Measure all pages that the selection could choose from, the best of them by quality alone, and the selected.

    Parameters
    ----------
    workspace
        A workspace in which the sample's recipe has run.
    """
    with fm.open(workspace) as opened:
        tables = {"pages": opened.sql(ELIGIBLE).to_arrow_table(), "truth": pq.read_table(TRUTH)}
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        known = connection.sql(PAGES)
        selected = known.filter("selected").shape[0]
        sets = {"all pages": "true", "best quality": f"place <= {selected}", "selected": "selected"}
        return {
            name: Outcome(*known.filter(condition).query("chosen", MEASURES).fetchall()[0])
            for name, condition in sets.items()
        }


def main() -> None:
    """Print the table of the workspace that is named, or else of the demo's."""
    table = Table(title="By what is known of every page (data_samples/README.md)", title_justify="left")
    table.add_column(no_wrap=True)
    for column in ("pages", "spam", "poor", "near-copies", "topics"):
        table.add_column(column, justify="right")
    for name, found in outcomes(sys.argv[1] if len(sys.argv) > 1 else "workspaces/sample").items():
        shares = (f"{share:.1%}" for share in (found.spam, found.poor, found.near_copies))
        table.add_row(name, f"{found.pages:,}", *shares, f"{found.topics:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
