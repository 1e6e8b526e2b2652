r"""Tell what the kernels of a compiled program must cost and what they take, without a device.

    python -m workers.llm.programs.analyse --dump inputs/compile/dump.tar.gz --peaks '{"gb_per_s": 5300, ...}'

The dump is what the compiler wrote beside the program; only the bindings of the same release read its text. Without
--peaks they are this machine's, which are measured once. Writes the report of `workers.llm.kernels.report` to
outputs/kernels.json, and as text to outputs/kernels.txt.
"""

import argparse
import json
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from workers.llm.command_line import BadInput, run, write_json, write_text
from workers.llm.kernels.cpu_peaks import cpu_peaks
from workers.llm.kernels.report import build_report
from workers.llm.kernels.table import summary_of, to_text

REPORT, TEXT = Path("outputs/kernels.json"), Path("outputs/kernels.txt")


def main() -> None:
    """Analyse the program."""
    args = parse_arguments()
    if not args.dump.exists():
        raise BadInput(f"{args.dump} does not exist: compile kept no dump, and its log says why")
    peaks = json.loads(args.peaks) if args.peaks else cpu_peaks()
    with TemporaryDirectory(dir=".") as scratch:
        with tarfile.open(args.dump) as archive:
            archive.extractall(scratch, filter="data")
        report = build_report(Path(scratch), peaks, args.matrix_instruction)
    write_json(REPORT, report)
    write_text(TEXT, to_text(report))
    for name, entry in report["entries"].items():
        print("\n".join(summary_of(name, entry, report["peaks"])), flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.analyse", description=__doc__.split("\n")[0])
    parser.add_argument("--dump", type=Path, required=True, help="the archive that compile kept")
    parser.add_argument("--peaks", help="of one device, in JSON, as jobs.peaks has them; by default this machine's")
    parser.add_argument("--matrix-instruction", default="", help="the beginning of the names of those to be counted")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
