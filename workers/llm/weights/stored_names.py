"""The names of parameters in checkpoints, where they differ from those in transformers' models. Pure.

transformers renames and stacks tensors while it loads (`conversion_mapping`, 5.23) and undoes that when it saves. Here
the bytes go straight from the files to the ranks, so the tensors of a parameter are only looked up.
"""

import re
from collections.abc import Iterator, Sequence

from workers.llm.sharding.split_styles import Shape

#: a pattern of parameter names, and the tensors stored instead; `{}` numbers experts, whose tensors are concatenated
STORED_AS = (
    (re.compile(r"^lm_head(\.weight)$"), (r"embed_out\1",)),
    (re.compile(r"\.mlp(\.gate\.weight)$"), (r".block_sparse_moe\1",)),
    (
        re.compile(r"\.mlp(\.experts)\.gate_up_proj$"),
        (r".block_sparse_moe\1.{}.w1.weight", r".block_sparse_moe\1.{}.w3.weight"),
    ),
    (re.compile(r"\.mlp(\.experts)\.down_proj$"), (r".block_sparse_moe\1.{}.w2.weight",)),
    (
        re.compile(r"(\.mlp\.experts)\.gate_up_proj$"),
        (r"\1.{}.gate_proj.weight", r"\1.{}.up_proj.weight"),
    ),
    (re.compile(r"(\.mlp\.experts)\.down_proj$"), (r"\1.{}.down_proj.weight",)),
)


def stored_as(name: str, shape: Shape) -> Iterator[Sequence[str]]:
    """Yield alternative lists of tensors whose concatenated matrices are the parameter; the first stored one counts."""
    yield (name,)
    for pattern, others in STORED_AS:
        if pattern.search(name):
            copies = shape[0] if "{}" in others[0] else 1
            yield [pattern.sub(other, name).format(copy) for copy in range(copies) for other in others]
