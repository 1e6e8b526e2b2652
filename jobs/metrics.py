"""The table of metrics: unit, stage and which direction is better. Names have a unit where it could be mistaken."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Metric:
    """One measured quantity."""

    stage: str  #: the stage that measures it
    unit: str
    is_lower_better: bool = True
    title: str = ""
    has_published_noise: bool = False  #: what is published about the noise of prefill and decode holds for it


#: What is timed of a request to a server.
SERVING_TIMES = {
    "ttft": "from a request to its first token",
    "tpot": "mean time of a request's further tokens",
    "itl": "from one token to the next",
    "e2e": "from a request to its last token",
}

#: What is known of an entry point without a device, over all devices of one call (`workers.llm.kernels.report`).
KERNEL_FACTS: dict[str, Metric] = {
    "floor_ms": Metric("analyse", "ms", title="least time of the busiest device, from its peaks"),
    "flops": Metric("analyse", "operations"),
    "bytes": Metric("analyse", "bytes", title="read and written, each tensor of a dispatch once"),
    "dispatches": Metric("analyse", "dispatches"),
    "spills": Metric("analyse", "registers", title="registers of all kernels that are kept in memory"),
    "min_waves": Metric("analyse", "waves", is_lower_better=False, title="fewest waves that a SIMD holds of a kernel"),
    "mfma": Metric("analyse", "instructions", is_lower_better=False, title="matrix instructions of its kernels"),
    "few_workgroups": Metric("analyse", "dispatches", title="dispatches with fewer workgroups than compute units"),
    "link_bytes": Metric("analyse", "bytes", title="sent from device to device"),
    "link_steps": Metric("analyse", "steps", title="transfers between devices, one after another"),
    "link_floor_ms": Metric("analyse", "ms", title="least time of these transfers"),
}
ANALYSED = ("prefill", "decode", "call")  #: kinds of entry points

METRICS: dict[str, Metric] = {
    "ttft_ms": Metric("benchmark", "ms", title="time to first token: one prefill", has_published_noise=True),
    "itl_ms": Metric("benchmark", "ms", title="inter-token latency: one decode step", has_published_noise=True),
    "prefill_tokens_per_s": Metric("benchmark", "tokens/s", is_lower_better=False, has_published_noise=True),
    "decode_tokens_per_s": Metric("benchmark", "tokens/s", is_lower_better=False, has_published_noise=True),
    "generation_ttft_ms": Metric("benchmark", "ms", title="time to the first token of a whole generation, on the host"),
    "itl_mean_ms": Metric("benchmark", "ms", title="mean time of a whole generation's decode steps"),
    "itl_p50_ms": Metric("benchmark", "ms", title="median time of a whole generation's decode steps"),
    "itl_p99_ms": Metric("benchmark", "ms", title="99th percentile of a whole generation's decode steps"),
    "e2e_ms": Metric("benchmark", "ms", title="end-to-end latency: a whole generation"),
    "output_tokens_per_s": Metric(
        "benchmark", "tokens/s", is_lower_better=False, title="new tokens of all rows, over a whole generation"
    ),
    "prefill_j": Metric("benchmark", "J", title="energy that all devices take for one prefill"),
    "decode_step_j": Metric("benchmark", "J", title="energy that all devices take for one decode step"),
    "generation_j": Metric("benchmark", "J", title="energy that all devices take for a whole generation"),
    "prefill_tokens_per_j": Metric("benchmark", "tokens/J", is_lower_better=False),
    "decode_tokens_per_j": Metric("benchmark", "tokens/J", is_lower_better=False),
    "output_tokens_per_j": Metric(
        "benchmark", "tokens/J", is_lower_better=False, title="new tokens of all rows, over a whole generation"
    ),
    "power_w": Metric("benchmark", "W", title="power of all devices while a workload is timed"),
    "power_max_w": Metric("benchmark", "W", title="highest power of all devices while a workload is timed"),
    "torch_compile_s": Metric("benchmark", "s", title="time that torch-compile's first calls take beyond later ones"),
    "host_memory_bytes": Metric("benchmark", "bytes", title="peak resident memory of all ranks together"),
    "device_memory_bytes": Metric("benchmark", "bytes", title="peak memory allocated on all devices together"),
    **{
        f"serving_{name}{suffix}_ms": Metric("serve", "ms", title=f"{share}{title}")
        for name, title in SERVING_TIMES.items()
        for suffix, share in (("", ""), ("_p90", "90th percentile: "), ("_p99", "99th percentile: "))
    },
    "serving_tokens_per_s": Metric("serve", "tokens/s", is_lower_better=False, title="new tokens of all requests"),
    "serving_tokens_per_s_per_device": Metric("serve", "tokens/s", is_lower_better=False),
    "serving_tokens_per_s_per_user": Metric(
        "serve", "tokens/s", is_lower_better=False, title="new tokens of one request after its first"
    ),
    "serving_goodput_rps": Metric(
        "serve", "requests/s", is_lower_better=False, title="requests that keep the job's limits"
    ),
    "serving_max_rate_rps": Metric(
        "serve", "requests/s", is_lower_better=False, title="highest rate at which 99% of the requests keep them"
    ),
    "serving_other_tokens": Metric("serve", "fraction", title="served tokens that are not the reference's choice"),
    "serving_max_gap": Metric("serve", "logits", title="largest gap to the logit of the reference's choice"),
    "train_s": Metric("finetune", "s", title="training, without loading and writing"),
    "train_step_ms": Metric("finetune", "ms", title="one step of the training"),
    "train_tokens_per_s": Metric("finetune", "tokens/s", is_lower_better=False),
    "train_loss": Metric("finetune", "nats", title="loss of each step, in their order"),
    "trained_parameters": Metric("finetune", "1", title="parameters that are trained"),
    "finetune_peak_bytes": Metric("finetune", "bytes"),
    "finetune_device_bytes": Metric("finetune", "bytes", title="peak memory allocated on the device"),
    "base_perplexity": Metric("finetune", "1", title="of held-out text before the training"),
    "tuned_perplexity": Metric("finetune", "1", title="of held-out text after it"),
    "base_other_perplexity": Metric("finetune", "1", title="of another text before the training"),
    "tuned_other_perplexity": Metric("finetune", "1", title="of another text after it: what is forgotten"),
    "quantize_s": Metric("quantize", "s", title="calibrating and writing the weights"),
    "quantize_peak_bytes": Metric("quantize", "bytes"),
    "quantized_bytes": Metric("quantize", "bytes", title="the weights' files"),
    "trace_s": Metric("export", "s", title="tracing and assembling the MLIR"),
    "parameters_s": Metric("export", "s", title="writing the parameter files"),
    "export_peak_bytes": Metric("export", "bytes"),
    "mlir_bytes": Metric("export", "bytes"),
    "parameter_bytes": Metric("export", "bytes"),
    "compile_s": Metric("compile", "s"),
    "compile_peak_bytes": Metric("compile", "bytes"),
    **{
        f"compile_{phase}_s": Metric("compile", "s", title=f"phase {phase.replace('_', '-')} of the compiler")
        for phase in (
            *("abi", "preprocessing", "global_optimization", "dispatch_creation", "flow", "stream"),
            *("executable_sources", "executable_configurations", "executable_targets", "hal", "vm"),
        )
    },
    "vmfb_bytes": Metric("compile", "bytes"),
    **{
        f"mfma_{entry}": Metric(
            "compile", "instructions", is_lower_better=False, title=f"matrix instructions in {entry} dispatches"
        )
        for entry in ("prefill", "decode", "extend", "score")
    },
    **{
        f"mfma_{kind}_{entry}": Metric(
            "compile", "instructions", is_lower_better=False, title=f"{kind} matrix instructions in {entry} dispatches"
        )
        for kind in ("fp8", "int8")
        for entry in ("prefill", "decode", "extend", "score")
    },
    **{f"{entry}_{name}": fact for entry in ANALYSED for name, fact in KERNEL_FACTS.items()},
    **{
        f"{entry}_{fact}": Metric("profile", "ms", title=title)
        for entry in ("prefill", "decode")
        for fact, title in {
            "kernels_ms": "time of a call within kernels, of the busiest device",
            "outside_ms": "time of a call outside of kernels: submission, allocation, waiting",
        }.items()
    },
    "call_ms": Metric("benchmark", "ms", title="one call of a program that haloctl did not make"),
    "output_error": Metric("invoke", "fraction", title="largest difference of a given program's results"),
    "load_s": Metric("invoke", "s", title="loading module and parameters"),
    "max_logit_diff": Metric("numerics", "logits"),
    "mean_logit_diff": Metric("numerics", "logits"),
    "argmax_agreement": Metric("numerics", "fraction", is_lower_better=False),
    "kl_mean": Metric("numerics", "nats"),
    "kl_max": Metric("numerics", "nats"),
    "perplexity": Metric("numerics", "1"),
    "reference_perplexity": Metric("numerics", "1"),
    "perplexity_increase_percent": Metric("numerics", "percent"),
    "quantized_kl_mean": Metric("numerics", "nats", title="mean KL from the same quantized weights in f32"),
    "scale_error_percent": Metric("numerics", "percent", title="certain error of a linear module's scale"),
    "eval_score": Metric("evaluate", "1", is_lower_better=False, title="score on a task, the higher the better"),
    "eval_loss": Metric("evaluate", "1", title="score on a task, the lower the better, such as a perplexity"),
    "eval_stderr": Metric("evaluate", "1", title="standard error of a score"),
    "eval_drop": Metric("evaluate", "1", title="by how much a score is worse than the reference's on the same items"),
    "eval_drop_stderr": Metric("evaluate", "1", title="standard error of that, whose items are pairs"),
}

#: What a gate compares exactly, each with the metrics that it stands for: it follows from the program alone.
EXACT: dict[str, tuple[str, ...]] = {fact: tuple(f"{entry}_{fact}" for entry in ANALYSED) for fact in KERNEL_FACTS}


def stage_of_metric(name: str) -> str:
    """Return the stage that measures a metric, or one of `EXACT`."""
    return METRICS[EXACT[name][0] if name in EXACT else name].stage


def metrics_like(pattern: str) -> tuple[str, ...]:
    """Return the metrics that match a name or pattern; empty if none does."""
    return tuple(name for name in METRICS if fnmatchcase(name, pattern))
