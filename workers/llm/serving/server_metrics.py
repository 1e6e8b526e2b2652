"""What a server tells Prometheus, under vLLM's names where they mean the same."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workers.llm.serving.engine import Engine

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

GAUGES = {
    "vllm:num_requests_running": "Sequences that hold blocks of the KV cache.",
    "vllm:num_requests_waiting": "Sequences that wait to be admitted.",
    "vllm:kv_cache_usage_perc": "Share of the KV cache's blocks that are held, 0 to 1.",
}
#: attributes of the engine's counters by metric
COUNTERS = {
    "vllm:prompt_tokens": ("admitted_tokens", "Tokens of admitted prompts."),
    "vllm:generation_tokens": ("generated_tokens", "Tokens of ended sequences."),
    "vllm:num_preemptions": ("preemptions", "Sequences that gave their blocks back for a while."),
    "vllm:prefix_cache_queries": ("admitted_tokens", "Tokens of prompts that were looked for in the cache."),
    "vllm:prefix_cache_hits": ("shared_tokens", "Tokens of prompts that were still in the cache."),
    "haloctl:engine_steps": ("steps", "Steps of the engine."),
    "haloctl:device_seconds": ("device_s", "Time within calls of the program."),
    "haloctl:host_seconds": ("host_s", "Time of the engine outside of them."),
    "haloctl:decode_rows": ("rows", "Rows of decode calls that computed a token."),
    "haloctl:padded_decode_rows": ("padded_rows", "Rows of decode calls that padded a batch."),
    "haloctl:padded_prompt_tokens": ("padded_prompt_tokens", "Tokens that padded prompts."),
}


class ServerMetrics(Collector):
    """The engine's state and counters, and the times that requests took."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.first_token_s = self._histogram("vllm:time_to_first_token_seconds", "From a request to its first token.")
        self.token_s = self._histogram("vllm:inter_token_latency_seconds", "From one token to the next.")
        self.request_s = self._histogram("vllm:e2e_request_latency_seconds", "From a request to its end.")

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=SECONDS, registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield what the engine knows."""
        engine, counters = self._engine, self._engine.counters
        pool = engine.pool
        gauges = (engine.running, engine.waiting, 1 - pool.free / pool.count)
        for (name, text), value in zip(GAUGES.items(), gauges, strict=True):
            yield GaugeMetricFamily(name, text, value=value)
        for name, (attribute, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(counters, attribute))
        ends = CounterMetricFamily("vllm:request_success", "Sequences that ended.", labels=["finished_reason"])
        for reason, count in list(counters.ends.items()):
            ends.add_metric([reason], count)
        yield ends
