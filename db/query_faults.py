"""Why a query was not answered."""

from db.views import VIEWS
from jobs.errors import BadSetting

QUERY = "query"


def refused(why: str) -> BadSetting:
    """It is wrong, or asks for more than views."""
    return BadSetting(QUERY, f"{why}; one SELECT over {', '.join(VIEWS)} is answered: see `haloctl query --views`")


def too_slow(timeout_s: float) -> BadSetting:
    """It took longer than it may."""
    return BadSetting(QUERY, f"not answered within {timeout_s:g} s; ask for less, or give it longer with --timeout")
