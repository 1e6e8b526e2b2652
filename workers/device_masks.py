"""The variables that hide GPUs from a vendor's runtime, and so from a node that is started under them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence

from workers.gpu_listing import Gpu, Listing
from workers.gpus import list_gpus

#: In the order in which they are applied.
MASKS_OF = {"amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "nvidia": ("CUDA_VISIBLE_DEVICES",)}
NONE = "-1"  #: hides all of them

Ask = Callable[[str], Listing | None]


def visible_indices(vendor: str, inherited: Mapping[str, str], ask: Ask = list_gpus) -> frozenset[int] | None:
    """The GPUs that masks leave, by index; None where there is no mask.

    ROCR_VISIBLE_DEVICES comes first, and HIP_VISIBLE_DEVICES counts what it left. Words may be indices or UUIDs; for
    the latter `ask` is called. One that names no GPU here leaves none.
    """
    left: list[int] | None = None
    for variable in MASKS_OF[vendor]:
        if words := _words(variable, inherited):
            gpus = _gpus(vendor, words, ask)
            left = [index for word in words for index in _named(word, left, gpus)]
    return None if left is None else frozenset(left)


def unknown_words(listing: Listing, inherited: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What masks have that is neither an index nor the UUID of a GPU that was listed: the variable and the word."""
    for variable in MASKS_OF[listing.vendor]:
        for word in _words(variable, inherited):
            if not word.isdecimal() and word != NONE and len(_by_uuid(word, listing.gpus)) != 1:
                yield variable, word


def use_one_mask(environment: MutableMapping[str, str], ask: Ask = list_gpus) -> None:
    """Have HIP_VISIBLE_DEVICES as AMD's only mask, which means the same as all of them did.

    Ray 2.60 can't even be imported with ROCR_VISIBLE_DEVICES alone (https://github.com/ray-project/ray/issues/53737).
    """
    visible = visible_indices("amd", environment, ask)
    if visible is not None:
        for variable in MASKS_OF["amd"]:
            environment.pop(variable, None)
        environment["HIP_VISIBLE_DEVICES"] = ",".join(map(str, sorted(visible))) or NONE


def _words(variable: str, inherited: Mapping[str, str]) -> list[str]:
    """Without the blanks; an empty mask is none, as some runtimes have it."""
    return [word for word in inherited.get(variable, "").replace(" ", "").split(",") if word]


def _gpus(vendor: str, words: Iterable[str], ask: Ask) -> Sequence[Gpu]:
    if all(word.isdecimal() or word == NONE for word in words):
        return ()
    listing = ask(vendor)
    return listing.gpus if listing else ()


def _named(word: str, left: list[int] | None, gpus: Sequence[Gpu]) -> list[int]:
    """What a word leaves of what earlier masks left."""
    if word.isdecimal():
        return [int(word)] if left is None else left[int(word) : int(word) + 1]
    return [index for index in _by_uuid(word, gpus) if left is None or index in left]


def _by_uuid(word: str, gpus: Sequence[Gpu]) -> list[int]:
    """The GPUs whose UUIDs begin so, as a mask may have it; several are none to a runtime."""
    found = [gpu.index for gpu in gpus if gpu.uuid and gpu.uuid.lower().startswith(word.lower())]
    return found if len(found) == 1 else []
