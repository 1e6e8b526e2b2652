"""What this machine's processors reach: measured once and kept in the user's cache folder, since no table has them."""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

VERSION = 1  #: raised when what is measured changes
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GEMM_SIZE, VECTOR_SIZE = 768, 1 << 14  #: in the caches
MEMORY_BYTES = 1 << 27  #: of each thread: much more than its share of the caches
REPETITIONS = 9
FLOATS = ("f64", "f32", "f16", "bf16", "i8", "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ")


def cpu_peaks() -> dict[str, Any]:
    """Return the peaks of this machine as `jobs.peaks.Peaks` has them, measured where they are not known yet."""
    cores = len(os.sched_getaffinity(0))
    file = cache_folder() / f"cpu-peaks-{VERSION}-{cores}-{abs(hash_of(processor()))}.json"
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        peaks = measure(cores)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        partial.write_text(json.dumps(peaks))
        partial.replace(file)
    except OSError as error:
        print(f"this machine's peaks are not kept, and measured again the next time: {error}")
    return peaks


def cache_folder() -> Path:
    """Return the folder for what is known of this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "haloctl"


def processor() -> str:
    """Return the name of this machine's processor with its features."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    keys = ("model name", "flags", "CPU part", "Features")
    return "\n".join(line for line in first.splitlines() if line.partition(":")[0].strip() in keys)


def hash_of(text: str) -> int:
    """Return a number that tells texts apart, the same in each process."""
    import zlib

    return zlib.crc32(text.encode())


def measure(cores: int) -> dict[str, Any]:
    """Measure f32 matrix products, f32 arithmetic and memory.

    One core's rates, in its own time, count for all of them, so that other load on the machine matters little. The
    best of several: a roof is what can be reached.
    """
    for name in THREAD_VARIABLES:  # read when numpy is imported
        os.environ[name] = "1"
    import numpy as np

    left = np.ones((GEMM_SIZE, GEMM_SIZE), np.float32)
    product = np.empty_like(left)
    gemm_s = best_s(lambda: np.matmul(left, left, out=product), time.thread_time)
    vector = np.ones(VECTOR_SIZE, np.float32)
    vector_s = best_s(lambda: [np.multiply(vector, vector, out=vector) for _ in range(100)], time.thread_time) / 100
    sources = [np.ones(MEMORY_BYTES // 4, np.float32) for _ in range(cores)]
    targets = [np.empty_like(source) for source in sources]
    with ThreadPoolExecutor(cores) as pool:

        def copy_all() -> None:
            list(pool.map(np.copyto, targets, sources))

        copy_s = best_s(copy_all, time.perf_counter)
    f32 = cores * 2 * GEMM_SIZE**3 / gemm_s / 1e12
    return {
        "source": f"measured on {cores} cores with {np.__name__} {np.__version__}: f32, whatever the operands are",
        "tflops": {**dict.fromkeys(FLOATS, f32), "f64": f32 / 2},
        "vector_tflops": cores * VECTOR_SIZE / vector_s / 1e12,
        "gb_per_s": 2 * cores * MEMORY_BYTES / copy_s / 1e9,
        "link_gb_per_s": 2 * cores * MEMORY_BYTES / copy_s / 1e9,  # logical devices share the memory
        "compute_units": cores,
        "launch_us": 0.0,
        "waves": None,
    }


def best_s(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the least time of several calls, after one that is not counted."""
    call()
    times = []
    for _ in range(REPETITIONS):
        begin = clock()
        call()
        times.append(clock() - begin)
    return min(times)
