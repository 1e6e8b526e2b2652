"""What a submission may ask for beside its job file."""

from dataclasses import dataclass

from jobs.errors import BadSetting
from jobs.variants import BenchmarkPlacement

EACH = "each"


@dataclass(frozen=True)
class SubmitOptions:
    """The options that replace values of the job file."""

    priority: int | None = None
    on: BenchmarkPlacement | None = None
    on_option: str = ""  #: the option that set `on`
    start: str | None = None  #: the stage that runs again, with the stages that follow it


@dataclass(frozen=True)
class CacheOptions:
    """What is taken from earlier jobs."""

    reuse: bool = True
    reuse_measurements: bool = False


NO_OPTIONS = SubmitOptions()
ALL_OUTPUTS = CacheOptions()  #: the default: outputs are reused, measurements are not


def parse_options(priority: int | None, nodes: str | None, devices: str | None, start: str | None) -> SubmitOptions:
    """Return the options; raises BadSetting for other words than `each`, and for two places."""
    words = {name: word for name, word in (("--nodes", nodes), ("--devices", devices)) if word is not None}
    for name, word in words.items():
        if word != EACH:
            raise BadSetting(name, f"should be {EACH}, not {word!r}")
    if len(words) > 1:
        raise BadSetting("--nodes, --devices", "choose one: --devices covers every node")
    if nodes:
        return SubmitOptions(priority, BenchmarkPlacement.EACH_NODE, "--nodes each", start)
    return SubmitOptions(priority, BenchmarkPlacement.EACH_DEVICE if devices else None, "--devices each", start)


def parse_cache_options(*, cache: bool, start: str | None, reuse_measurements: bool) -> CacheOptions:
    """Return what is reused; raises BadSetting for options that contradict each other.

    Measurements are late stages, so `--from` covers them.
    """
    options_given = {"--no-cache": not cache, "--from": start is not None, "--reuse-measurements": reuse_measurements}
    names = [name for name, is_given in options_given.items() if is_given]
    if len(names) > 1:
        raise BadSetting(", ".join(names), "choose one: what runs again is not taken from the cache")
    return CacheOptions(cache, reuse_measurements)
