"""The environment variables that hide GPUs from a vendor's runtime, and so from a node that is started under them."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

from workers.machine.gpu_listing import Gpu, GpuListing
from workers.machine.gpus import list_gpus

#: In the order in which they are applied.
MASKS = {"amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "nvidia": ("CUDA_VISIBLE_DEVICES",)}
HIDE_ALL = "-1"

ListGpus = Callable[[str], GpuListing | None]


def visible_indices(
    vendor: str, environment: Mapping[str, str], list_gpus: ListGpus = list_gpus
) -> frozenset[int] | None:
    """Return the indices of the GPUs that the masks leave visible; None where no mask is set.

    ROCR_VISIBLE_DEVICES is applied first, and HIP_VISIBLE_DEVICES counts the GPUs that it leaves. Entries are indices
    or UUIDs; `list_gpus` is called only for the latter. An entry that matches no GPU leaves none.
    """
    visible: list[int] | None = None
    for variable in MASKS[vendor]:
        if entries := _entries(variable, environment):
            is_by_uuid = not all(entry.isdecimal() or entry == HIDE_ALL for entry in entries)
            listing = list_gpus(vendor) if is_by_uuid else None
            gpus = listing.gpus if listing else ()
            visible = [index for entry in entries for index in _apply_entry(entry, visible, gpus)]
    return None if visible is None else frozenset(visible)


def unknown_mask_entries(listing: GpuListing, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variable and the entry for each mask entry that is neither an index nor a listed GPU's UUID."""
    for variable in MASKS[listing.vendor]:
        for entry in _entries(variable, environment):
            if not entry.isdecimal() and entry != HIDE_ALL and not _indices_by_uuid(entry, listing.gpus):
                yield variable, entry


def merge_amd_masks(environment: MutableMapping[str, str], list_gpus: ListGpus = list_gpus) -> None:
    """Replace AMD's masks by one HIP_VISIBLE_DEVICES with the same effect.

    Ray 2.60 can't even be imported with ROCR_VISIBLE_DEVICES alone (https://github.com/ray-project/ray/issues/53737).
    """
    visible = visible_indices("amd", environment, list_gpus)
    if visible is not None:
        for variable in MASKS["amd"]:
            environment.pop(variable, None)
        environment["HIP_VISIBLE_DEVICES"] = ",".join(map(str, sorted(visible))) or HIDE_ALL


def _entries(variable: str, environment: Mapping[str, str]) -> list[str]:
    """Split a mask, without blanks; an empty mask counts as unset, as in some runtimes."""
    return [entry for entry in environment.get(variable, "").replace(" ", "").split(",") if entry]


def _apply_entry(entry: str, visible: list[int] | None, gpus: Sequence[Gpu]) -> list[int]:
    """Return the GPU of an entry, among those that earlier masks leave visible."""
    if entry.isdecimal():
        return [int(entry)] if visible is None else visible[int(entry) : int(entry) + 1]
    return [index for index in _indices_by_uuid(entry, gpus) if visible is None or index in visible]


def _indices_by_uuid(prefix: str, gpus: Sequence[Gpu]) -> list[int]:
    """Return the GPU whose UUID starts so, in a list; none if several do, as runtimes refuse an ambiguous prefix."""
    indices = [gpu.index for gpu in gpus if gpu.uuid and gpu.uuid.lower().startswith(prefix.lower())]
    return indices if len(indices) == 1 else []
