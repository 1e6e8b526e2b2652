"""The Hugging Face hub: which commit a model's name stands for now."""

from pathlib import Path

TIMEOUT_S = 10.0


def commit(hub_id: str, revision: str | None) -> str | None:
    """The commit of a branch or tag, of the main branch by default: as the hub tells, else as it was last fetched.

    None where neither is known.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the HTTP library that it has

    try:
        return HfApi().model_info(hub_id, revision=revision, timeout=TIMEOUT_S, expand=["sha"]).sha
    except (OSError, ValueError, HTTPError):  # the model's check tells what is wrong with it
        found = try_to_load_from_cache(hub_id, "config.json", revision=revision)
        return Path(found).parent.name if isinstance(found, str) else None
