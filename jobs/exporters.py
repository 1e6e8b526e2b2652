"""What makes a program of a model, beside haloctl itself: what each can't do."""

from jobs.variants import QUANTIZED, Exporter, KvPrecision, Quantizer, Variant


def problem(variant: Variant) -> str | None:
    """Why a variant's exporter can't make it."""
    if variant.exporter is Exporter.HALOCTL:
        return None
    if variant.tp > 1:
        return "the exporter sharktank splits no model over devices: its release 3.8 asserts a tensor parallelism of 1"
    if variant.kv_precision is not KvPrecision.SAME:
        return "the exporter sharktank takes no scales for a KV cache: Brevitas 0.13 can't export them"
    if variant.precision in QUANTIZED and variant.quantizer is not Quantizer.BREVITAS:
        return f"the exporter sharktank takes {variant.precision} from the quantizer brevitas alone"
    return None
