"""The filters of a page, which are the query of its address: every view can be linked."""

from typing import Annotated

from fastapi import Depends, Query

MAX_TEXT = 200

Text = Annotated[str, Query(max_length=MAX_TEXT)]
Filters = dict[str, str | None]  #: by name; None: not given


def _filters(model: Text = "", variant: Text = "", target: Text = "", toolchain: Text = "") -> Filters:
    values = {"model": model, "variant": variant, "target": target, "toolchain": toolchain}
    return {name: text.strip() or None for name, text in values.items()}


FiltersOf = Annotated[Filters, Depends(_filters)]
