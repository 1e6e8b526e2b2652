"""`haloctl bisect`."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.toolchains import ToolchainSpec
    from orchestrator.reruns.bisection import BisectionResult
    from orchestrator.reruns.probing import ProbeResult

COLUMNS = ("toolchain", "ran", "verdict", "job", "time", "")


def bisect(
    file: options.JobFile,
    when: Annotated[
        str,
        typer.Option(
            "--when",
            help="What a bad toolchain does: 'compile fails', 'ttft_ms worse by 5%', 'kernels: spills > 0', ...",
        ),
    ],
    good: Annotated[str | None, typer.Option("--good", help="A good toolchain, such as iree-3.9.")] = None,
    bad: Annotated[
        str | None, typer.Option("--bad", help="A bad one; the registry's releases in between are searched.")
    ] = None,
    toolchains: Annotated[
        str | None, typer.Option("--toolchains", help="The toolchains to search instead, from good to bad: a,b,c.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="A variant of the job; its first by default.")
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", help="At most this many pairs of measurements for a verdict.", min=1, max=1000)
    ] = 12,
    json: options.Json = False,
) -> None:
    """Find the first bad toolchain by bisection.

    It runs one variant and only the stages that are needed. Timings are measured alternately with the good toolchain's
    on the same device. Toolchains that can't be judged are skipped. After an interrupt, the same command continues.
    """
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.follow import waiting
    from orchestrator.reruns import predicates, probing
    from orchestrator.reruns.bisection import BisectionSearch
    from orchestrator.submission import preparation
    from orchestrator.toolchains import site_toolchains

    predicate = predicates.parse(when)
    with open_context() as context:
        specs = site_toolchains.read_toolchains(context.settings)
        search = BisectionSearch(_candidates(good, bad, toolchains, specs))
        prepared = preparation.prepare(file, context.settings)
        chosen = probing.chosen_variant(prepared.spec, prepared.model, variant)
        request = probing.BisectionRequest(
            prepared.spec, prepared.model.named(chosen.model), chosen, predicate, specs, rounds
        )
        predicates.expect_toolchain_matters(predicate, search.candidates, request.stages, chosen.engine, specs)
        output.print_message(f"{chosen.plain_name} {chosen.target}: {when}? {' '.join(search.candidates)}")
        with waiting.follower(context, cancels_when_interrupted=True) as wait:
            prober = probing.Prober(context, request, search.candidates[0], wait)
            while (name := search.next_candidate) is not None:
                search = search.marked(name, prober.probe(name))
                output.print_message(f"{name}: {search.marks[name]}")
    assert search.result is not None
    _print(prober.probes, search.result, search.candidates, json=json)


def _candidates(
    good: str | None, bad: str | None, listed: str | None, specs: "Mapping[str, ToolchainSpec]"
) -> tuple[str, ...]:
    from jobs.errors import BadSetting
    from jobs.toolchain_table import find_toolchain
    from orchestrator.toolchains import releases

    if listed is not None:
        names = tuple(name.strip() for name in listed.split(",") if name.strip())
        if good or bad:
            raise BadSetting("--toolchains", "does not go with --good and --bad: its first is good, its last is bad")
        if len(set(names)) < max(len(names), 2):
            raise BadSetting("--toolchains", "should name two or more, from good to bad, each once")
    elif good and bad and good != bad:
        names = releases.candidates(good, bad, specs)
    else:
        raise BadSetting("--good, --bad", "should name two different toolchains; or use --toolchains a,b,c")
    for name in names:
        find_toolchain(name, specs)
    return names


def _print(probes: "list[ProbeResult]", result: "BisectionResult", candidates: tuple[str, ...], *, json: bool) -> None:
    from jobs.errors import Conflict
    from orchestrator import output
    from orchestrator.tables import TextTable

    if json:
        output.print_json(
            {
                "first_bad": result.first_bad,
                "last_good": result.last_good,
                "suspects": list(result.suspects),
                "problem": result.problem,
                "candidates": list(candidates),
                "probes": [probe.as_json() for probe in probes],
            }
        )
    else:
        output.print_table(TextTable(COLUMNS, [probe.line() for probe in probes], right=("time",)))
    if result.problem:
        raise Conflict(result.problem)
    if not json:
        first_bad = (
            f"{result.first_bad} is the first bad one"
            if result.first_bad
            else f"the first bad one is among {', '.join(result.suspects)}"
        )
        output.print_line(f"{first_bad}; {result.last_good} is the last good one")
