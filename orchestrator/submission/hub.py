"""The commits of models on the Hugging Face hub."""

from pathlib import Path

TIMEOUT_S = 10.0


def commit(hub_id: str, revision: str | None) -> str | None:
    """Return the commit of a branch or tag (by default the main branch) on the hub, or else in the local cache.

    Returns None if neither is known.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the error of its HTTP library

    try:
        return HfApi().model_info(hub_id, revision=revision, timeout=TIMEOUT_S, expand=["sha"]).sha
    except (OSError, ValueError, HTTPError):  # the model check reports what is wrong
        config = try_to_load_from_cache(hub_id, "config.json", revision=revision)
        return Path(config).parent.name if isinstance(config, str) else None
