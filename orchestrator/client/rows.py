"""Rows of an answer, which become frames of pandas or polars where these are installed."""

from typing import Any

from jobs.errors import BadSetting


class Rows(list[dict[str, Any]]):
    """Objects with the same keys, as `--json` prints them."""

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raises BadSetting where pandas is not installed."""
        return _import("pandas").DataFrame(list(self))

    def to_polars(self) -> Any:
        """Return a polars.DataFrame. Raises BadSetting where polars is not installed.

        Columns of mappings, such as `context`, hold objects, since their keys differ from row to row.
        """
        polars = _import("polars")
        mappings = {name: polars.Object for row in self for name, value in row.items() if isinstance(value, dict)}
        return polars.DataFrame(list(self), schema_overrides=mappings, infer_schema_length=None)


def _import(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise BadSetting(f"to_{name}()", f"{name} is missing: run pip install {name}") from None
