r"""Compare what a program returned with what was expected.

    python -m workers.llm.programs.compare_results --expected want.npy --result outputs/result0.npy

The arguments come in pairs. Writes outputs/results.json: {"errors", "problem"}: the largest difference of each pair,
relative to the largest expected value, or why they can't be compared. The stage decides whether an error is too large.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workers.llm.command_line import BadInput, run, write_json

REPORT = Path("outputs/results.json")


def main() -> None:
    """Compare all pairs of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.compare_results", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--expected", type=Path, action="append", required=True)
    parser.add_argument("--result", type=Path, action="append", required=True)
    args = parser.parse_args()
    errors: list[float] = []
    problem = ""
    for number, (expected, result) in enumerate(zip(args.expected, args.result, strict=True)):
        problem = problem or difference_in_kind(number, read(expected), read(result))
        if not problem:
            errors.append(relative_error(read(expected), read(result)))
    write_json(REPORT, {"errors": errors, "problem": problem})
    print(problem or f"largest differences: {', '.join(f'{error:.3g}' for error in errors)}", flush=True)


def read(file: Path) -> npt.NDArray[np.generic]:
    """Return an array. Raises BadInput for a file that holds none."""
    try:
        array: npt.NDArray[np.generic] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{file} is no array that numpy can read: {error}") from None
    return array


def difference_in_kind(number: int, expected: npt.NDArray[np.generic], result: npt.NDArray[np.generic]) -> str:
    """Return why two arrays can't be compared, or are not equal whatever the tolerance; empty if they can."""
    if expected.shape != result.shape:
        return f"result {number} has the shape {list(result.shape)}, and {list(expected.shape)} is expected"
    where_finite = np.isfinite(wide(expected))
    if not np.array_equal(where_finite, np.isfinite(wide(result))):
        return f"result {number} is not finite where it should be, or the other way round"
    return ""


def relative_error(expected: npt.NDArray[np.generic], result: npt.NDArray[np.generic]) -> float:
    """Return the largest difference of finite values, relative to the largest expected one."""
    finite = np.isfinite(wide(expected))
    wanted, measured = wide(expected)[finite], wide(result)[finite]
    if not wanted.size:
        return 0.0
    difference = float(np.abs(wanted - measured).max())
    return difference / (float(np.abs(wanted).max()) or 1.0)


def wide(array: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return an array as float64."""
    return array.astype(np.float64)


if __name__ == "__main__":
    run(main)
