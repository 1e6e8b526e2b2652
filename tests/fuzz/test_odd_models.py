"""A program of an odd model computes what transformers computes, or the model is refused with a reason."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fuzz.odd_models import odd_model
from tests.fuzz.odd_programs import RIGHT, outcome_of

SLICE = (1, 2, 3, 5, 90)  #: of two devices and of one, refused, and with a head that is tied to whole embeddings
ALL = range(400)


@pytest.mark.parametrize("number", SLICE)
def test_a_part_of_the_odd_models_is_right_or_refused(number: int, tmp_path: Path) -> None:
    outcome_of(odd_model(number), tmp_path)


@pytest.mark.fuzz
@pytest.mark.timeout(4 * 3600)
def test_odd_models_are_right_or_refused() -> None:
    outcomes: Counter[str] = Counter()
    faults = []
    for number in ALL:
        with TemporaryDirectory() as folder:
            try:
                outcomes[outcome_of(odd_model(number), Path(folder))] += 1
            except Exception as fault:
                faults.append(f"{number}, {odd_model(number)}: {type(fault).__name__}: {fault}")
    print(f"\n{outcomes[RIGHT]} of {len(ALL)} are right; the others:")
    for reason, count in outcomes.most_common():
        print(f"{count:4} {reason}")
    assert not faults, "\n".join(faults)
    assert outcomes[RIGHT] > len(ALL) / 3
