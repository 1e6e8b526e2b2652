"""Fields of forms."""

from urllib.parse import parse_qsl

from fastapi import Request

MAX_FIELDS = 20


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; one that is none has no fields."""
    body = (await request.body()).decode(errors="replace")
    try:
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        return {}
