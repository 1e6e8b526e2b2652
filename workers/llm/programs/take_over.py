"""Copy a program that haloctl did not make into the outputs.

python -m workers.llm.programs.take_over --file program.mlir --output outputs/model.mlir
"""

import argparse
import shutil
from pathlib import Path

from workers.llm.command_line import BadInput, os_errors_naming, run


def main() -> None:
    """Copy the file of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.take_over", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    if not args.file.is_file():
        raise BadInput(f"the program {args.file} does not exist")
    with os_errors_naming(args.output):
        shutil.copyfile(args.file, args.output)


if __name__ == "__main__":
    run(main)
