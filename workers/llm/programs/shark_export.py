r"""Export a model with sharktank (the SHARK route), from Hugging Face or Brevitas.

    python -m workers.llm.programs.shark_export --model tiny-llama --precision f16 --batch 1 --prompt-tokens 64 \
        --cache-length 96

The imported model has its own rope base (`workers.llm.shark.shark_model`); a warning says what sharktank leaves out.
The program keeps keys and values in pages that its caller passes in: config.json gives their number and size for
`workers.llm.runtime.shark_session`, and a .flags file for each workload passes them to IREE's programs. Runs under a
toolchain with sharktank.
"""

import argparse
import importlib.metadata
import json
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from workers.llm.command_line import (
    BadInput,
    ProgramFailed,
    add_model_arguments,
    os_errors_naming,
    parse_overrides,
    positive_int,
    run,
    write_json,
)
from workers.llm.models.model_source import LocalModel, load_model
from workers.llm.program_format import FORMAT
from workers.llm.shark import shark_model
from workers.llm.shark.shark_program import STRIDE, Pages, entry_points, flags, pages_of, timed

OUTPUTS = Path("outputs")
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
LOW_BIT_DTYPES = {"fp8": "float32", "int8": "float32"}  #: Brevitas exports the rest in f32
KERNELS = {"sdpa": "torch", "eager": "decomposed"}
DTYPE_OPTIONS = ("activation", "attention", "kv_cache")
MLIR, PARAMETERS = "model.mlir", "model.irpa"


def main() -> None:
    """Export as the command line says."""
    started = time.monotonic()
    args = parse_arguments()
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    for _, reason in shark_model.problems(model, args.pp, args.cache_length):
        raise BadInput(reason)
    OUTPUTS.mkdir(exist_ok=True)
    irpa = OUTPUTS / PARAMETERS
    with TemporaryDirectory(dir=".") as scratch:
        if args.dataset:
            shark_model.repair(args.dataset, irpa, model)
        else:
            import_model(model, Path(scratch, "model"), args.precision, irpa)
        imported = time.monotonic()
        run_sharktank(args, irpa, Path(scratch, "sharktank.json"))
        service = json.loads(Path(scratch, "sharktank.json").read_text())
    pages = pages_of(service, max(*args.bs_prefill, *args.bs_decode), args.cache_length)
    write_json(OUTPUTS / "config.json", program_config(args, model, pages))
    write_flags(args, pages)
    report: dict[str, Any] = {
        "trace_s": round(time.monotonic() - imported, 3),
        "parameters_s": round(imported - started, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "mlir_bytes": (OUTPUTS / MLIR).stat().st_size,
        "parameter_bytes": irpa.stat().st_size,
        "warnings": shark_model.rope_warnings(model),
    }
    for warning in report["warnings"]:
        print(f"warning: {warning}", flush=True)
    write_json(OUTPUTS / "export.json", report)
    print(f"exported in {report['trace_s'] + report['parameters_s']:.1f} s", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.shark_export")
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=(*DTYPES, *LOW_BIT_DTYPES), required=True)
    parser.add_argument(
        "--dataset", type=Path, help="the data set that Brevitas exported for shark-ai, instead of the weights"
    )
    parser.add_argument("--pp", type=positive_int, default=1, help="devices of a pipeline, each with its own layers")
    parser.add_argument("--attention", choices=KERNELS, default="sdpa")
    parser.add_argument("--batch", type=positive_int, nargs="+", required=True)
    parser.add_argument("--prompt-tokens", type=positive_int, nargs="+", required=True)
    parser.add_argument("--cache-length", type=positive_int, required=True)
    for part in DTYPE_OPTIONS:
        parser.add_argument(
            f"--{part.replace('_', '-')}-dtype", choices=DTYPES.values(), help="by default the precision"
        )
    parser.add_argument("--attention-kernel", help="of sharktank; by default that of --attention")
    for kind in ("prefill", "decode"):
        parser.add_argument(f"--bs-{kind}", type=positive_int, nargs="+", help="batch sizes; by default --batch")
    args = parser.parse_args()
    args.bs_prefill, args.bs_decode = (sorted(sizes or args.batch) for sizes in (args.bs_prefill, args.bs_decode))
    return args


def import_model(model: LocalModel, folder: Path, precision: str, irpa: Path) -> None:
    """Import a model as sharktank.tools.import_hf_dataset does, with its own rope base."""
    from sharktank.utils.hf import import_hf_dataset, llama3_hf_config_to_sharktank

    import_hf_dataset(
        folder / "config.json",
        shark_model.write_model(model, folder),
        output_irpa_file=irpa,
        target_dtype=getattr(torch, DTYPES[precision]),
        metadata_transform=lambda config: shark_model.with_rope(llama3_hf_config_to_sharktank(config), model),
    )


def run_sharktank(args: argparse.Namespace, irpa: Path, config: Path) -> None:
    """Run sharktank's own export. Raises ProgramFailed when it fails."""
    dtype = {**DTYPES, **LOW_BIT_DTYPES}[args.precision]
    argv = [sys.executable, "-m", "sharktank.examples.export_paged_llm_v1", f"--irpa-file={irpa}"]
    argv += [f"--output-mlir={OUTPUTS / MLIR}", f"--output-config={config}"]
    argv += [f"--bs-{kind}={','.join(map(str, sizes))}" for kind, sizes in batches_by_kind(args).items()]
    argv += [f"--block-seq-stride={STRIDE}"]
    argv += [f"--pipeline-parallelism-size={args.pp}"]
    for part in DTYPE_OPTIONS:
        argv += [f"--{part.replace('_', '-')}-dtype={getattr(args, f'{part}_dtype') or dtype}"]
    argv += [f"--attention-kernel={args.attention_kernel or KERNELS[args.attention]}"]
    argv += ["--use-hf", "--prefill-final-logits"]
    process = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
    if process.returncode:
        raise ProgramFailed(f"sharktank's export ended with {process.returncode}", 1)


def batches_by_kind(args: argparse.Namespace) -> dict[str, list[int]]:
    """Return the batch sizes of prefill and of decode."""
    return {"prefill": args.bs_prefill, "decode": args.bs_decode}


def write_flags(args: argparse.Namespace, pages: Pages) -> None:
    """Write a .flags file for each workload of prefill and decode."""
    for kind, batches in batches_by_kind(args).items():
        for batch, prompt_tokens in product(batches, args.prompt_tokens):
            entry = timed(kind, batch, prompt_tokens, pages)
            path = OUTPUTS / f"{entry['label']}.flags"
            with os_errors_naming(path):
                path.write_text(flags(entry))


def program_config(args: argparse.Namespace, model: LocalModel, pages: Pages) -> dict[str, Any]:
    """Return config.json as haloctl's own export writes it, with the pages."""
    packages = ("torch", "transformers", "sharktank", "iree-base-compiler", "iree-turbine")
    return {
        "format": FORMAT,
        "exporter": "sharktank",
        "model": {**model.describe(), "rope_theta": shark_model.rope_theta(model)},
        "precision": args.precision,
        "attention": args.attention,
        "tp": 1,
        "pp": args.pp,
        "devices": args.pp,
        "batch_sizes": sorted({*args.bs_prefill} & {*args.bs_decode}),
        "prompt_tokens": sorted(args.prompt_tokens),
        "cache_length": args.cache_length,
        "vocab_size": model.config.vocab_size,
        "parameter_scope": "model",
        "parameter_files": [PARAMETERS],
        "entry_points": list(entry_points(args.bs_prefill, args.bs_decode, args.prompt_tokens, pages)),
        "pages": pages,
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }


if __name__ == "__main__":
    run(main)
