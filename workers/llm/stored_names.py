"""The names under which checkpoints hold a parameter, where they are not transformers' own. Pure.

transformers renames and stacks while it loads (`conversion_mapping`, 5.23) and undoes it when it saves; here the bytes
go straight from the files to the ranks, so that what belongs together is only looked up.
"""

import re
from collections.abc import Iterator, Sequence

from workers.llm.split_styles import Shape

#: a parameter's name, and what is stored instead; `{}` counts experts, whose tensors follow one another
STORED_AS = (
    (re.compile(r"^lm_head(\.weight)$"), (r"embed_out\1",)),
    (re.compile(r"\.mlp(\.gate\.weight)$"), (r".block_sparse_moe\1",)),
    (
        re.compile(r"\.mlp(\.experts)\.gate_up_proj$"),
        (r".block_sparse_moe\1.{}.w1.weight", r".block_sparse_moe\1.{}.w3.weight"),
    ),
    (re.compile(r"\.mlp(\.experts)\.down_proj$"), (r".block_sparse_moe\1.{}.w2.weight",)),
)


def stored_as(name: str, shape: Shape) -> Iterator[Sequence[str]]:
    """Lists of tensors, the first of which that is stored is the parameter: their matrices follow one another."""
    yield (name,)
    for pattern, others in STORED_AS:
        if pattern.search(name):
            copies = shape[0] if "{}" in others[0] else 1
            yield [pattern.sub(other, name).format(copy) for copy in range(copies) for other in others]
