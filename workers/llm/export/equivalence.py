"""Is what would be exported the model? Its traced subgraphs against the family's own code, both in torch, in seconds.

The subgraphs are traced from a narrow model with random weights that has the config's kinds of layers, and are put
together as in a program for one device: prompts of different lengths with other tokens behind them, then decoded
tokens. A config that means something else to the family's code than to haloctl fails here, whatever the family.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from jobs.contexts import context_for
from workers.llm.command_line import BadInput
from workers.llm.export.entry_points import EntryPoint
from workers.llm.export.kv_cache import CacheLayout
from workers.llm.export.subgraphs import cut_into_subgraphs, kind_of
from workers.llm.export.tracing import SubgraphTracer, TracedBlock, TracedProgram
from workers.llm.models.small_config import choose_layers, small_config, with_layers
from workers.llm.weights.archive_layout import LAYER
from workers.llm.weights.meta_model import build_meta_model, shard

#: the largest difference, in standard deviations of the outputs: different orders of f32 sums make 1e-5
TOLERANCE = 1e-3
PREFILL = EntryPoint("prefill", 2, 12)
LENGTHS, STEPS = torch.tensor([12, 9]), 2
PART = 7  #: tokens of a row that extend and score take at once: half of all


def check_equivalence(model: nn.Module, attention: str, block_tokens: int | None) -> None:
    """Raise BadInput with the module that differs where a program of the meta model `model` would be another model.

    It must be called before the model is quantized or cut.
    """
    config: Any = model.config
    plan: dict[str, str] = model.tp_plan or {}  # type: ignore[assignment]
    if not any("layers." in pattern for pattern in plan):
        raise BadInput(f"model: transformers ships no plan that names the blocks of a {config.model_type}'s layers")
    chosen = choose_layers(_layer_kinds(model))
    narrow = small_config(config, chosen[-1] + 1)
    # rows are longer than what a decode reads of them
    layout = CacheLayout(2 * context_for(PREFILL.tokens + STEPS, block_tokens), PREFILL.batch, block_tokens)
    try:
        reference = _build_reference(narrow, chosen)
        meta_model = _keep(build_meta_model(narrow, torch.float32, attention, mode := FakeTensorMode()), chosen)
        weights = dict(reference.named_parameters(remove_duplicate=False))
        with torch.inference_mode():
            problem = _compare(reference, TracedSubgraphs(meta_model, layout, mode, weights))
    except BadInput:
        raise
    except Exception as error:  # family code raises errors of many types where it is called as it does not expect
        first = str(error).strip().partition("\n")[0]
        problem = f"model: its code cannot be traced ({type(error).__name__}: {first})"
    if problem:
        raise BadInput(f"this {config.model_type} cannot be exported with attention {attention}: {problem}")


def _layer_kinds(model: nn.Module) -> list[Any]:
    config: Any = model.config
    types = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    return [(kind_of(layer), kind) for layer, kind in zip(_layers_of(model)[1], types, strict=False)]


def _layers_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the list of decoder layers, after its name."""
    names = (match["layer"] for name, _ in model.named_parameters() if (match := LAYER.match(name)))
    name = next(names).rpartition(".")[0]
    layers = model.get_submodule(name)
    assert isinstance(layers, nn.ModuleList)
    return name, layers


def _keep(model: nn.Module, layers: list[int]) -> nn.Module:
    """Drop all but these decoder layers."""
    name, every = _layers_of(model)
    model.set_submodule(name, nn.ModuleList(every[layer] for layer in layers))
    config: Any = with_layers(model.config, layers)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config = config
    return model


def _build_reference(config: Any, layers: list[int]) -> nn.Module:
    """Return the family's own model, eager, with random weights that make every parameter matter."""
    reference: nn.Module = AutoModelForCausalLM.from_config(
        config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        trust_remote_code=False,
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in reference.parameters():
        mean, deviation = (0.5, 0.2) if parameter.dim() == 1 else (0.0, 1.6 * parameter.shape[-1] ** -0.5)
        parameter.data.normal_(mean, deviation, generator=generator)
    return _keep(reference.eval(), layers)


class TracedSubgraphs:
    """The subgraphs of both entry points, and an interpreter that runs them on `weights` as a program does."""

    def __init__(
        self, model: nn.Module, layout: CacheLayout, mode: FakeTensorMode, weights: dict[str, nn.Parameter]
    ) -> None:
        self._graphs: dict[str, torch.fx.Graph] = {}
        self._weights = weights
        self._cache: dict[str, list[torch.Tensor]] = {}
        self.outputs: dict[str, torch.Tensor] = {}  #: of each subgraph in the latest call, in the order of their ends
        self._layout = layout
        context = layout.capacity // 2
        self.decode = EntryPoint("decode", PREFILL.batch, context=context)
        kinds = ("extend", "score") if layout.block_tokens else ()
        self.parts = [EntryPoint(kind, PREFILL.batch, PART, context) for kind in kinds]
        sharding = shard(model, 1)
        stubs = cut_into_subgraphs(model, sharding)
        tracer = SubgraphTracer(model, stubs, sharding, layout, mode, torch.float32, self._graphs.__setitem__)
        self._programs = {entry: tracer.trace(entry) for entry in (PREFILL, self.decode, *self.parts)}

    def call(self, entry: EntryPoint, *arguments: torch.Tensor) -> torch.Tensor:
        """Return the first result of an entry point, given all arguments but the block table."""
        program, given = self._programs[entry], iter(arguments)
        self.outputs = {}
        weights = [self._weights[name] for name in program.weights]
        names = entry.argument_names(self._layout)
        inputs = [self._table(entry) if name == "block_table" else next(given) for name in names]
        inputs += [*weights, *program.constants.values()]
        result: torch.Tensor
        result, *_ = self._run(entry.name, inputs, lambda name, tensors: self._call(program, name, tensors))
        return result

    def _table(self, entry: EntryPoint) -> torch.Tensor:
        """Return the rows' blocks, which are not in the order of the rows."""
        return torch.from_numpy(self._layout.block_table(entry.batch, entry.context or self._layout.capacity)).flip(0)

    def _run(self, symbol: str, inputs: list[torch.Tensor], call: "Call") -> Any:
        return SubgraphInterpreter(self._graphs[symbol], call).run(*inputs)

    def _call(self, program: TracedProgram, name: str, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Run a layer, or a block outside of the layers."""
        if name in program.blocks:
            return self._call_block(program.blocks[name], name, inputs)
        layer = program.layers[name]
        first = next(other for other, traced in program.layers.items() if traced.symbol == layer.symbol)

        def call(site: str, tensors: list[torch.Tensor]) -> torch.Tensor:
            block = site.removeprefix(f"{first}.")
            return self._call_block(layer.blocks[block], f"{name}.{block}", tensors)

        weights = [self._weights[f"{name}.{weight}"] for weight in layer.weights]
        (self.outputs[name],) = self._run(layer.symbol, [*inputs, *weights], call)
        return self.outputs[name]

    def _call_block(self, block: TracedBlock, name: str, inputs: list[torch.Tensor]) -> torch.Tensor:
        offset = [torch.tensor(0)] if block.rows else []
        weights = [self._weights[f"{name}.{weight}"] for weight in block.weights]
        cache = self._cache.setdefault(name, [torch.zeros(meta.shape) for meta in block.cache])
        inputs = [*inputs, *offset, *weights, *cache]
        self.outputs[name], *self._cache[name] = self._run(block.symbol, inputs, self._no_call)
        return self.outputs[name]

    def _no_call(self, name: str, _: list[torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError(f"{name} is split within a module that is split")


Call = Callable[[str, list[torch.Tensor]], torch.Tensor]


class SubgraphInterpreter(torch.fx.Interpreter):
    """Runs a traced subgraph; `call` runs those that it calls, by the names of their modules."""

    def __init__(self, graph: torch.fx.Graph, call: Call) -> None:
        super().__init__(nn.Module(), graph=graph)
        self._call = call

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation."""
        if target is torch.ops.haloctl.subgraph.default:
            inputs, name, *_ = args
            return self._call(name, inputs)
        return super().call_function(target, args, kwargs)


def _compare(reference: nn.Module, subgraphs: TracedSubgraphs) -> str | None:
    """Return what differs, or None."""
    generator = torch.Generator().manual_seed(0)
    config: Any = reference.config
    tokens = torch.randint(0, config.vocab_size, (PREFILL.batch, PREFILL.tokens + STEPS), generator=generator)
    prompts = tokens[:, : PREFILL.tokens].clone()
    prompts[1, LENGTHS[1] :] = prompts[1, : PREFILL.tokens - LENGTHS[1]]  # what is behind a prompt must not matter
    logits = [subgraphs.call(PREFILL, prompts, LENGTHS)]
    outputs = subgraphs.outputs
    for step in range(STEPS):
        positions = LENGTHS + step
        logits.append(subgraphs.call(subgraphs.decode, tokens.gather(1, positions[:, None]), positions))
    expected = [
        reference(input_ids=row[None, : end + STEPS], use_cache=False).logits[0, end - 1 :]
        for row, end in zip(tokens, LENGTHS.tolist(), strict=True)
    ]
    difference = _distance(torch.cat(logits, dim=1), torch.stack(expected))
    difference = max(
        difference, *(_parts_distance(reference, subgraphs, entry, tokens) for entry in subgraphs.parts), 0
    )
    if difference < TOLERANCE:
        return None
    module = _first_difference(reference, tokens[:1, : PREFILL.tokens], outputs)
    return f"{module}: a program would not compute what transformers computes (logits differ by {difference:.2g} sigma)"


def _parts_distance(reference: nn.Module, subgraphs: TracedSubgraphs, entry: EntryPoint, tokens: torch.Tensor) -> float:
    """Return the largest difference where the rows' tokens are taken in parts."""
    expected = reference(input_ids=tokens, use_cache=False).logits
    targets = tokens.roll(-1, dims=1)
    results = []
    for start in range(0, tokens.shape[1], PART):
        part = slice(start, start + PART)
        starts = torch.full((entry.batch,), start)
        scored = [targets[:, part]] if entry.kind == "score" else []
        results.append(subgraphs.call(entry, tokens[:, part], torch.full_like(starts, PART), starts, *scored))
    if entry.kind == "score":
        expected = expected.log_softmax(-1).gather(2, targets[..., None])[..., 0]
    else:
        expected = expected[:, PART - 1 :: PART]
    return _distance(torch.cat(results, dim=1), expected)


def _distance(measured: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference in standard deviations of the expected values; infinite where it is no number."""
    distance = float((measured - expected).abs().max() / expected.std())
    return distance if distance == distance else float("inf")


def _first_difference(reference: nn.Module, prompt: torch.Tensor, outputs: dict[str, torch.Tensor]) -> str:
    """Return the first subgraph whose output for the first row's prompt differs, or the model where none does."""
    expected: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            expected[name] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [reference.get_submodule(name).register_forward_hook(keep(name)) for name in outputs]
    reference(input_ids=prompt, use_cache=False)
    for hook in hooks:
        hook.remove()
    count = prompt.shape[1]
    for name, output in outputs.items():
        rows, others = output.flatten(0, -2), expected[name].flatten(0, -2)
        if len(rows) == PREFILL.batch * count and not _distance(rows[:count], others) < TOLERANCE:
            return name
    return "model"
