"""One rank of a model that runs in torch: its number and its device."""

from dataclasses import dataclass

import torch

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  #: of torch.distributed, by device type; nccl is RCCL on ROCm


@dataclass(frozen=True)
class TorchRank:
    """One process of a sharded model, with a device of its own."""

    number: int  #: among all ranks
    size: int  #: number of all ranks
    local: int  #: its number on its node
    local_size: int  #: ranks on its node
    device: str  #: torch's device type

    @property
    def torch_device(self) -> torch.device:
        """Its device among those of its node that the program may use."""
        return torch.device("cpu") if self.device == "cpu" else torch.device(self.device, self.local)

    def __str__(self) -> str:
        return f"rank {self.number} of {self.size}"
