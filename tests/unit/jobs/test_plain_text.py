"""Hidden characters: all of Unicode's are escaped, and nothing else is changed."""

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.plain_text import escape_hidden, has_hidden, one_line, plain_log, readable_log

HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
#: Letters, marks and unassigned characters that are shown as nothing, by Default_Ignorable_Code_Point.
IGNORABLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2065\u3164\ufe0f\uffa0\ufff0\U000e0fff"


def test_every_control_and_format_character_is_hidden() -> None:
    characters = map(chr, range(sys.maxunicode + 1))
    shown = [text for text in characters if unicodedata.category(text) in HIDDEN_CATEGORIES and not has_hidden(text)]
    assert [*shown, *(text for text in IGNORABLE if not has_hidden(text))] == []


def test_what_people_write_is_not_hidden() -> None:
    text = "llama3.1-8B ß 日本 א 🙂 e\u0301 \u00a0 -> (200.2, 9.6)"
    assert not has_hidden(text)
    assert escape_hidden(text) == one_line(text) == text


@pytest.mark.parametrize(
    ("text", "escaped", "line"),
    [
        ("\x1b[2Ja", r"\x1b[2Ja", r"\x1b[2Ja"),
        ("\x1b]52;c;aGk=\x07", r"\x1b]52;c;aGk=\x07", r"\x1b]52;c;aGk=\x07"),
        ("a\n b", r"a\n b", "a b"),
        ("a\r\nb\u2028c\x85d", r"a\r\nb\u2028c\x85d", "a b c d"),
        ("\u202egpj.exe", r"\u202egpj.exe", r"\u202egpj.exe"),
        ("\x9b1m\x7f\U000e0041\udcff", r"\x9b1m\x7f\U000e0041\udcff", r"\x9b1m\x7f\U000e0041\udcff"),
    ],
)
def test_hidden_characters_are_escaped(text: str, escaped: str, line: str) -> None:
    assert (escape_hidden(text), one_line(text)) == (escaped, line)


PIECES = st.lists(st.sampled_from(["\x1b[31m", "\x1b[", "\x1b", "0;1m", "\r", "\r\n", "\n", "\t", "a", "\x07", "é"]))


@settings(max_examples=500)
@given(PIECES, st.data())
def test_a_log_reads_the_same_in_whatever_parts_it_comes(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    parts = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join(readable_log(parts)) == plain_log(text)
    assert not has_hidden(plain_log(text).replace("\n", "").replace("\t", ""))


def test_a_log_loses_its_colours_and_shows_the_rest() -> None:
    assert plain_log("\x1b[1;31mFAIL\x1b[0m\r\n 10%\r 20%\x1b[K\n\tdone") == "FAIL\n 10%\n 20%\\x1b[K\n\tdone"
