"""What makes a program of a model, beside haloctl itself: what each can't do."""

from jobs.variants import QUANTIZED, Engine, Exporter, KvPrecision, Quantizer, Variant


def problem(variant: Variant) -> str | None:
    """Why a variant's exporter can't make it."""
    if variant.pp > 1 and variant.exporter is Exporter.HALOCTL:
        what = "the exporter haloctl" if variant.engine is Engine.IREE else f"the engine {variant.engine}"
        return (
            f"{what} makes no pipeline: it splits every layer over all devices (tp); the exporter sharktank gives each "
            "device layers of its own (pp)"
        )
    if variant.exporter is Exporter.HALOCTL:
        return None
    if variant.tp > 1:
        return (
            "the exporter sharktank splits no layer over devices: its release 3.8 asserts a tensor parallelism of 1; "
            "what it has is a pipeline (pp)"
        )
    if variant.kv_precision is not KvPrecision.SAME:
        return "the exporter sharktank takes no scales for a KV cache: Brevitas 0.13 can't export them"
    if variant.precision in QUANTIZED and variant.quantizer is not Quantizer.BREVITAS:
        return f"the exporter sharktank takes {variant.precision} from the quantizer brevitas alone"
    return None
