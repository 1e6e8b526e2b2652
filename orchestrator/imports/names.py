"""Variants by the names that trackers give them: the inverse of how haloctl makes names. Pure."""

import re
from enum import StrEnum

from jobs.targets import TARGETS
from jobs.variants import AXES, NAMES, PRECISION_NAMES, Axes, Variant, variant_name

#: What a name's parts mean, but for numbers.
WORDS: dict[str, tuple[str, StrEnum]] = {
    word: (axis, value)
    for axis, kind in AXES.items()
    if isinstance(kind, type) and issubclass(kind, StrEnum)
    for value in kind
    if (word := NAMES[axis](value))
}
NUMBERS = {"tp": re.compile(r"TP(\d+)"), "pp": re.compile(r"PP(\d+)"), "nodes": re.compile(r"(\d+)N")}
PRECISIONS = {word: precision for precision, word in PRECISION_NAMES.items()}


def variant_called(name: str, target: str = "", tp: int = 1) -> tuple[str, Variant]:
    """The model and the variant that a name stands for; raises ValueError, which says what is wrong with it.

    `llama3.1-8B-FP16` is what haloctl calls `llama3.1-8B-FP16-TP1`, or by another `tp`. A target in the name, as in
    `llama-toy-FP32-TP2-CPU`, goes before the one that is given.
    """
    found = re.fullmatch(rf"(.+?)-({'|'.join(PRECISIONS)})(-.+)?", name.strip())
    if found is None:
        raise ValueError(f"{name!r} should be MODEL-PRECISION, with one of {', '.join(PRECISIONS)}, and TPn if need be")
    model, precision, rest = found[1], PRECISIONS[found[2]], found[3] or ""
    axes: dict[str, object] = {"precision": precision, "attention": AXES["attention"]("sdpa"), "tp": tp}
    while rest:
        word, rest = _first(name, rest)
        if word.lower() in TARGETS:
            target = word.lower()
        else:
            axis, value = _meaning(word)
            axes[axis] = value
    if not target:
        raise ValueError(f"{name!r} does not say what it runs on: give --target")
    made = Axes(**axes)  # type: ignore[arg-type]
    return model, Variant(variant_name(model, made), target, **made.axes)


def _first(name: str, rest: str) -> tuple[str, str]:
    """The first part of a name's rest, and what follows; words may have hyphens in them."""
    known = [word for word in WORDS if rest == f"-{word}" or rest.startswith(f"-{word}-")]
    number = re.match(
        rf"-({'|'.join(sign.pattern for sign in NUMBERS.values())}|{'|'.join(TARGETS)})(?=-|$)", rest, re.I
    )
    word = max(known, key=len) if known else number[1] if number else None
    if word is None:
        said = ", ".join((*WORDS, "TPn", "PPn", "nN"))
        raise ValueError(f"{rest.lstrip('-')!r} at the end of {name!r} means nothing: there are {said}")
    return word, rest[len(word) + 1 :]


def _meaning(word: str) -> tuple[str, object]:
    if word in WORDS:
        return WORDS[word]
    return next((axis, int(found[1])) for axis, sign in NUMBERS.items() if (found := sign.fullmatch(word.upper())))
