"""Parses the names that trackers give variants: the inverse of how haloctl makes names. Pure."""

import re

from jobs.axis_words import WORDS_OF_AXES
from jobs.targets import TARGETS
from jobs.variants import AXES, NAME_PARTS, PRECISION_NAMES, Axes, Variant, variant_name

#: The meaning of each part of a name that is no number.
WORDS: dict[str, tuple[str, str]] = {
    word: (axis, value)
    for axis, values in WORDS_OF_AXES.items()
    for value in values
    if (word := NAME_PARTS[axis](value))
}
NUMBERS = {
    "tp": re.compile(r"TP([1-9]\d{0,3})"),
    "pp": re.compile(r"PP([1-9]\d{0,3})"),
    "nodes": re.compile(r"([1-9]\d{0,3})N"),
}
PRECISIONS = {word: precision for precision, word in PRECISION_NAMES.items()}


def parse_variant_name(name: str, target: str = "", tp: int = 1) -> tuple[str, Variant]:
    """Return the model and the variant that a name stands for; raises ValueError with what is wrong with it.

    `llama3.1-8B-FP16` is what haloctl calls `llama3.1-8B-FP16-TP1`, or by another `tp`. A target in the name, as in
    `llama-toy-FP32-TP2-CPU`, overrides `target`.
    """
    match = re.fullmatch(rf"(.+?)-({'|'.join(PRECISIONS)})(-.+)?", name.strip())
    if match is None:
        precisions = ", ".join(PRECISIONS)
        raise ValueError(f"{name!r} should be MODEL-PRECISION, with one of {precisions}, and TPn unless it is 1")
    model, precision, rest = match[1], PRECISIONS[match[2]], match[3] or ""
    axes: dict[str, object] = {"precision": precision, "attention": AXES["attention"]("sdpa"), "tp": tp}
    given: set[str] = set()
    while rest:
        word, rest = _split_word(name, rest)
        if word.lower() in TARGETS:
            target = word.lower()
        else:
            axis, value = _meaning(word)
            if axis in given:
                raise ValueError(f"{name!r} names {axis} twice")
            given.add(axis)
            axes[axis] = value
    if not target:
        raise ValueError(f"{name!r} does not name a target; give --target")
    parsed = Axes(**axes)  # type: ignore[arg-type]
    return model, Variant(variant_name(model, parsed), target, **parsed.axes)


def _split_word(name: str, rest: str) -> tuple[str, str]:
    """Return the first word of a name's rest, and what follows; words may have hyphens in them."""
    known = [word for word in WORDS if rest == f"-{word}" or rest.startswith(f"-{word}-")]
    number = re.match(
        rf"-({'|'.join(pattern.pattern for pattern in NUMBERS.values())}|{'|'.join(TARGETS)})(?=-|$)", rest, re.I
    )
    word = max(known, key=len) if known else number[1] if number else None
    if word is None:
        words = ", ".join((*WORDS, "TPn", "PPn", "nN"))
        raise ValueError(f"{rest.lstrip('-')!r} at the end of {name!r} is unknown: there are {words}")
    return word, rest[len(word) + 1 :]


def _meaning(word: str) -> tuple[str, object]:
    if word in WORDS:
        return WORDS[word]
    matches = ((axis, pattern.fullmatch(word.upper())) for axis, pattern in NUMBERS.items())
    return next((axis, int(match[1])) for axis, match in matches if match)
