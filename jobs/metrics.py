"""Every metric there is: its unit and which way is better. Names carry units where people might mix them up."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One kind of number."""

    unit: str
    is_lower_better: bool = True
    title: str = ""


METRICS: dict[str, Metric] = {
    "ttft_ms": Metric("ms", title="time to first token: one prefill"),
    "itl_ms": Metric("ms", title="inter-token latency: one decode step"),
    "prefill_tokens_per_s": Metric("tokens/s", is_lower_better=False),
    "decode_tokens_per_s": Metric("tokens/s", is_lower_better=False),
    "host_memory_bytes": Metric("bytes", title="peak resident memory, of all ranks together"),
    "device_memory_bytes": Metric("bytes", title="peak memory allocated on the devices, all of them together"),
    "trace_s": Metric("s", title="tracing and assembling the MLIR"),
    "parameters_s": Metric("s", title="writing the parameter files"),
    "export_peak_bytes": Metric("bytes"),
    "mlir_bytes": Metric("bytes"),
    "parameter_bytes": Metric("bytes"),
    "compile_s": Metric("s"),
    "compile_peak_bytes": Metric("bytes"),
    "vmfb_bytes": Metric("bytes"),
    "mfma_prefill": Metric("instructions", is_lower_better=False, title="matrix instructions in prefill dispatches"),
    "mfma_decode": Metric("instructions", is_lower_better=False, title="matrix instructions in decode dispatches"),
    "load_s": Metric("s", title="loading module and parameters"),
    "max_logit_diff": Metric("logits"),
    "mean_logit_diff": Metric("logits"),
    "argmax_agreement": Metric("fraction", is_lower_better=False),
    "kl_mean": Metric("nats"),
    "kl_max": Metric("nats"),
    "perplexity": Metric("1"),
    "reference_perplexity": Metric("1"),
    "perplexity_increase_percent": Metric("percent"),
}
