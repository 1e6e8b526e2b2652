"""Text without characters that a terminal, a page or a reader would take for something else.

Names, messages and logs come from job files, programs and imported databases. Hidden are the control characters (C0,
DEL, C1), the bidirectional and other invisible format characters, separators of lines, and lone surrogates: by the
general categories Cc, Cf, Cs, Zl and Zp, and the property Default_Ignorable_Code_Point of Unicode.
"""

import re
from collections.abc import Iterable, Iterator

HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
LINE_ENDS = re.compile(r"\s*[\t-\r\x1c-\x1e\x85\u2028\u2029]\s*")
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
#: The end of a part of a log that the next part may complete to a colour or a line end.
UNFINISHED = re.compile(r"(?:\r|\x1b(?:\[[0-9;:]{0,32})?)\Z")


def has_hidden(text: str) -> bool:
    """Return whether a text has hidden characters."""
    return not (text.isascii() and text.isprintable()) and HIDDEN.search(text) is not None


def escape_hidden(text: str, keep: str = "") -> str:
    r"""Return a text with its hidden characters, except those to `keep`, as `\x1b` or `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return HIDDEN.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def one_line(text: str) -> str:
    """Return a text in one line: line ends and tabs become blanks, other hidden characters are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return escape_hidden(LINE_ENDS.sub(" ", text))


def readable_log(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a log as `plain_log` returns the whole."""
    rest = ""
    for chunk in chunks:
        text = rest + chunk
        unfinished = UNFINISHED.search(text)
        rest = unfinished[0] if unfinished else ""
        yield plain_log(text.removesuffix(rest))
    yield plain_log(rest)


def plain_log(text: str) -> str:
    r"""Return the output of a program without colours, with `\n` as line end, and other hidden characters escaped."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return escape_hidden(COLOUR.sub("", lines), keep="\n\t")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
