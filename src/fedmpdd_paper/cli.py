"""The commands `reproduce` and `verify`: words on the command line to calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmpdd.cli.shared import DataDir, Json, check_page, output, print_json, said_how_to_go_on, training
from fedmpdd.display import ManyRounds, claims_table, corrections, messages, round_display
from fedmpdd.errors import InputError


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures by name, or all; none: list them.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=5, help="How many of the paper's five seeds.")] = 5,
    methods: Annotated[str | None, typer.Option(help="Only these rows, by codec: fedsgd,mpdd:m=400.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Trainings at a time, a process each.")] = 1,
    audited: Annotated[bool, typer.Option("--audit", help="Attack the codecs too: SSIM and verdicts.")] = False,
    done_only: Annotated[bool, typer.Option("--done", help="Train nothing: show what is done.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for runs and results; what is there is used.")] = Path("results"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run what is missing of the paper's tables and figures, and put its numbers beside ours.

    What is done is used, what was interrupted goes on. How long it will take is said before it starts.
    """
    training()
    from fedmpdd_paper import catalogue
    from fedmpdd_paper.estimate import done_methods, done_study, estimate, estimate_study
    from fedmpdd_paper.figures import figure_is_done, figure_text, reproduce_figure
    from fedmpdd_paper.latency import done_latency, latency_text, reproduce_latency
    from fedmpdd_paper.reproduce import choose_methods
    from fedmpdd_paper.reproduce import reproduce as run_table
    from fedmpdd_paper.studies import load_study, reproduce_study, study_text
    from fedmpdd_paper.table_text import markdown
    from fedmpdd_paper.trainings import Place

    if not names:
        if as_json:
            print_json({"names": catalogue.all_names()})
        else:
            print("\n".join(catalogue.described()))
        return
    wanted = catalogue.choose(names)
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {device!r} is unknown: expected auto, cpu or cuda")
    only = None if methods is None else [text.strip() for text in methods.split(",") if text.strip()]
    if only is not None and not (only and wanted.tables):
        raise InputError(f"--methods {methods!r} chooses no row: name codecs of a table's rows, and a table")
    tables = choose_methods(wanted.tables, only) if wanted.tables else []
    place = Place(out, device, data_dir)
    studies, figures = [load_study(name) for name in wanted.studies], list(wanted.figures)
    if done_only:
        there = [(own, done_methods(own, rows, seeds, place)) for own, rows in tables]
        tables = [(own, rows) for own, rows in there if rows]
        studies = [study for study in (done_study(study, seeds, place) for study in studies) if study.variants]
        figures = [name for name in figures if figure_is_done(name, place)]
    else:
        _make_folder(out)
    if not done_only and (tables or studies):
        messages.print("timing a few rounds of every row …")
        for table, rows in tables:
            messages.print(f"{table.name}: {estimate(table, rows, seeds, place)}", soft_wrap=True)
        for study in studies:
            messages.print(f"{study.name}: {estimate_study(study, seeds, place)}", soft_wrap=True)
    results: list[tuple[dict[str, Any], str]] = []  # documents, and what people read

    def keep(document: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> None:
        results.append((document, text(document)))

    with said_how_to_go_on("stopped; the same command goes on from there"), round_display() as start:
        on_round = ManyRounds(start, jobs)

        def on_attack(name: str) -> Callable[[str, float], None]:
            return lambda _, share: on_round(f"{name}, attacks in percent", round(100 * share), 100, None)

        shared: dict[str, Any] = {"jobs": jobs, "on_round": on_round}
        for table, rows in tables:
            attacks: dict[str, Any] = {"audited": audited, "on_attack": on_attack(table.name)}
            keep(run_table(table, place, seeds=seeds, methods=rows, **attacks, **shared), markdown)
        if wanted.latency:
            timed = done_latency(place) if done_only else reproduce_latency(place)
            if timed is not None:
                keep(timed, latency_text)
        for name in figures:
            keep(reproduce_figure(name, place, on_attack=on_attack(name), **shared), figure_text)
        for study in studies:
            keep(reproduce_study(study, place, seeds=seeds, **shared), study_text)
    if done_only and not results:
        messages.print(f"nothing of it is done in {out} yet; without --done it is run")
    if as_json:
        print_json(results[0][0] if len(results) == 1 else {"results": [document for document, _ in results]})
        return
    for _, text in results:
        print(text)


def _make_folder(out: Path) -> None:
    """Make the folder for results before anything is timed, or say why it cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made: {error}; choose another folder") from None


def verify(
    parts: Annotated[list[str] | None, typer.Argument(help="Parts, like norms or inversion; default: all.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to write a page with the curves of convergence.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the paper's lemmas and theorems, with a verdict each: about a minute."""
    from fedmpdd_paper.theory import convergence_page
    from fedmpdd_paper.theory import verify as measure
    from fedmpdd_paper.theory.claims import JOINT_LEVEL

    if plot is not None:
        runs = training()
        check_page(plot, "--plot")
    report = measure(messages.print, parts or (), curves_wanted=plot is not None)
    if plot is not None:
        runs.write_text(plot, convergence_page(report.curves))
        messages.print(f"page: {plot.resolve().as_uri()}", soft_wrap=True)
    if as_json:
        print_json(report.as_dict())
        return
    output(False).print(claims_table(report.rows, JOINT_LEVEL))
    output(False).print(corrections(report.rows))
