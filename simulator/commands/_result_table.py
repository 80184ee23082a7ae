"""Tables of results as files: CSV and Parquet, written whole or not at all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .. import escape
from ..errors import UserError
from ..files import atomic

if TYPE_CHECKING:
    import pandas as pd

PARQUET = ".parquet"


def check_parquet(path: str) -> None:
    """Raises `UserError` for a Parquet file if no library that writes Parquet is installed."""
    if path.lower().endswith(PARQUET) and find_spec("pyarrow") is None:
        raise UserError("Parquet is written by pyarrow, which is not installed", hint="pip install '.[parquet]', or write a .csv")


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Writes a table as Parquet or CSV, by the suffix of the file."""
    with atomic(path) as temporary:
        if str(path).lower().endswith(PARQUET):
            import pyarrow as pa
            from pyarrow import parquet

            parquet.write_table(pa.Table.from_pandas(frame, preserve_index=False), temporary)
        else:
            safe = frame.map(lambda value: escape.csv_cell(value) if isinstance(value, str) else value)
            safe.to_csv(temporary, index=False)
