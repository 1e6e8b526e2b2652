"""`haloctl bisect`."""

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.toolchains import Row
    from orchestrator.repeating.bisection import Answer
    from orchestrator.repeating.probing import Probe

COLUMNS = ("toolchain", "ran", "verdict", "job", "time", "")


def bisect(
    file: str = typer.Argument(help="A job file, or the name of a recipe.", metavar="FILE|RECIPE"),
    when: str = typer.Option(
        help="What a bad toolchain does: 'compile fails', 'numerics fail', 'ttft_ms worse by 5%', ..."
    ),
    good: str = typer.Option(None, "--good", help="A toolchain that is good, such as iree-3.9."),
    bad: str = typer.Option(None, "--bad", help="One that is bad; the releases between are the registry's."),
    toolchains: str = typer.Option(None, "--toolchains", help="All to choose from, good to bad: a,b,c."),
    variant: str = typer.Option(None, "--variant", help="One of the job's variants; by default its first."),
    rounds: int = typer.Option(12, "--rounds", help="At most so many pairs of measurements for a verdict.", min=1),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Find the first bad one of several toolchains.

    By halving: one variant, and no more stages than it takes. Timings are taken in turns with the good toolchain's, in
    one place. What can't be judged is skipped. Interrupted, it goes on where it was when it is called again.
    """
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.repeating import predicates, probing
    from orchestrator.repeating.bisection import Search
    from orchestrator.submitting import submission, waiting
    from orchestrator.toolchains import site_toolchains

    predicate = predicates.parse(when)
    with opened() as context:
        rows = site_toolchains.rows(context.settings)
        search = Search(_candidates(good, bad, toolchains, rows))
        prepared = submission.prepare(file, context.settings)
        chosen = probing.chosen_variant(prepared.spec, prepared.model, variant)
        asked = probing.Asked(prepared.spec, prepared.model.named(chosen.model), chosen, predicate, rows, rounds)
        predicates.expect_it_depends(predicate, search.candidates, asked.stages, chosen.engine, rows)
        output.note(f"{chosen.plain_name} {chosen.target}: {when}? {' '.join(search.candidates)}")
        with waiting.follower(context, cancels_when_interrupted=True) as wait:
            prober = probing.Prober(context, asked, search.candidates[0], wait)
            while (name := search.next) is not None:
                search = search.told(name, prober.probe(name))
                output.note(f"{name}: {search.verdicts[name]}")
    assert search.answer is not None
    _print(prober.probes, search.answer, search.candidates, json=json)


def _candidates(good: str | None, bad: str | None, listed: str | None, rows: "Mapping[str, Row]") -> tuple[str, ...]:
    from jobs.errors import BadSetting
    from jobs.toolchains import find
    from orchestrator.toolchains import releases

    if listed is not None:
        names = tuple(name.strip() for name in listed.split(",") if name.strip())
        if good or bad:
            raise BadSetting(
                "--toolchains", "its first is the good one, its last the bad one: leave out --good and --bad"
            )
        if len(set(names)) < max(len(names), 2):
            raise BadSetting("--toolchains", "name two or more, from good to bad, each once")
    elif good and bad and good != bad:
        names = releases.candidates(good, bad, rows)
    else:
        raise BadSetting("--good, --bad", "give two that differ, or all there are with --toolchains a,b,c")
    for name in names:
        find(name, rows)
    return names


def _print(probes: "list[Probe]", answer: "Answer", candidates: tuple[str, ...], *, json: bool) -> None:
    from jobs.errors import Conflict
    from orchestrator import output

    if json:
        found: dict[str, Any] = {
            "first_bad": answer.first_bad,
            "last_good": answer.last_good,
            "suspects": list(answer.suspects),
            "problem": answer.problem,
            "candidates": list(candidates),
            "probes": [probe.as_json() for probe in probes],
        }
        output.as_json(found)
    else:
        output.table(COLUMNS, [probe.line() for probe in probes], right=("time",))
    if answer.problem:
        raise Conflict(answer.problem)
    if not json and answer.first_bad:
        output.answer(f"{answer.first_bad} is the first bad one; {answer.last_good} is the last good one")
    elif not json:
        output.answer(
            f"the first bad one is among {', '.join(answer.suspects)}; {answer.last_good} is the last good one"
        )
