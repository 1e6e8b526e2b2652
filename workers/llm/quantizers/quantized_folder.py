"""Writing a quantized model as a folder in the layout, and the report on it."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from workers.llm.command_line import os_errors_naming, peak_rss_bytes, write_json
from workers.llm.models.quantized_layout import KEY, QuantizedLayout, quantization_config
from workers.llm.quantizers.quantize_request import QuantizeRequest
from workers.llm.quantizers.quantized_weight import QuantizedWeight

OUTPUTS = Path("outputs")
SHARD_BYTES = 4 << 30  #: the largest safetensors file
SCALES = ("weight_scale", "input_scale", "k_scale", "v_scale")  #: whose ranges the report states


def write_quantized_model(
    request: QuantizeRequest,
    quantizer: str,
    layout: QuantizedLayout,
    modules: Mapping[str, QuantizedWeight],
    others: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    **report: Any,
) -> None:
    """Write the quantized `modules`, the `others` as the model has them, and a report into outputs/.

    `weights` are the modules' original weights, for the errors in the report; `report` holds further entries of it.
    """
    tensors = {name: tensor.contiguous() for name, tensor in others.items()}
    for name, module in modules.items():
        assert layout.scheme is not None
        tensors |= module.tensors(name, layout.scheme)
    config = {**request.model.config.to_dict(), KEY: quantization_config(layout)}
    size_bytes = write_folder(OUTPUTS, config, tensors)
    errors = {name: module.error(weights[name].float()) for name, module in modules.items()}
    write_report(request, quantizer, layout, tensors, weight_bytes=size_bytes, relative_errors=errors, **report)


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> int:
    """Write config.json and the tensors; return the bytes of the safetensors files.

    Tensors of more than 4 GiB are split over several files with an index.
    """
    folder.mkdir(exist_ok=True)
    shards = split_into_shards(tensors)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
        weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        total_bytes = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        write_json(folder / "model.safetensors.index.json", index)
    for file, shard in zip(names, shards, strict=True):
        with os_errors_naming(folder / file):
            save_file(shard, folder / file, metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    return sum((folder / file).stat().st_size for file in names)


def split_into_shards(tensors: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Distribute tensors by name over shards of at most SHARD_BYTES; a larger tensor has a shard of its own."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in sorted(tensors.items()):
        if shards[-1] and sum(stored.nbytes for stored in shards[-1].values()) + tensor.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = tensor
    return shards


def write_report(
    request: QuantizeRequest, quantizer: str, layout: QuantizedLayout, tensors: Mapping[str, torch.Tensor], **more: Any
) -> None:
    """Write outputs/quantize.json: the quantized modules, the ranges of their scales, the time and memory it took."""
    scheme = layout.scheme
    report = {
        "quantizer": quantizer,
        "precision": scheme.precision if scheme else None,
        "granularity": scheme.granularity if scheme else None,
        "group_size": scheme.group_size if scheme else None,
        "inputs": scheme.inputs if scheme else None,
        "quantized": sorted(name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")),
        "left": list(layout.ignored),
        "scales": scale_ranges(tensors),
        "quantize_s": round(time.monotonic() - request.started, 3),
        "peak_rss_bytes": peak_rss_bytes(),
        **more,
    }
    write_json(OUTPUTS / "quantize.json", report)
    print(f"{quantizer}: {len(report['quantized'])} modules in {report['quantize_s']} s", flush=True)


def scale_ranges(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return the least and the largest scale of each kind that a model has."""
    ranges = {}
    for kind in SCALES:
        scales = [tensor.float() for name, tensor in tensors.items() if name.endswith(f".{kind}")]
        if scales:
            ranges[kind] = [float(min(map(torch.min, scales))), float(max(map(torch.max, scales)))]
    return ranges
