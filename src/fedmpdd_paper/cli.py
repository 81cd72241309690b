"""The commands `reproduce` and `verify`: words on the command line to calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmpdd.cli.shared import DataDir, Json, output, print_json, resume_hint, training
from fedmpdd.display import messages, round_display, table
from fedmpdd.documents import parse_json
from fedmpdd.errors import InputError


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures by name, or all; none: list them.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=5, help="How many of the paper's five seeds.")] = 5,
    methods: Annotated[str | None, typer.Option(help="Only these rows, by codec: fedsgd,mpdd:m=400.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[
        int,
        typer.Option(min=1, max=256, help="Trainings at a time, a process each; of fine-tunings side by side."),
    ] = 1,
    audited: Annotated[bool, typer.Option("--audit", help="Attack the codecs too: SSIM and verdicts.")] = False,
    done_only: Annotated[bool, typer.Option("--done", help="Train nothing: show what is done.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for runs and results; what is there is used.")] = Path("results"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run what is missing of the paper's tables and figures, and put its numbers beside ours.

    What is done is used, what was interrupted goes on. How long it will take is said before it starts.

    Example: fedmpdd reproduce mnist-iid-logistic --seeds 1 --methods fedsgd,mpdd:m=400
    """
    training()
    from fedmpdd_paper import catalogue
    from fedmpdd_paper.estimate import done_methods, done_study, estimate, estimate_study
    from fedmpdd_paper.figures import figure_is_done, figure_text, reproduce_figure
    from fedmpdd_paper.finetuning import finetuning_text, load_finetuning, reproduce_finetuning
    from fedmpdd_paper.latency import done_latency, latency_text, reproduce_latency
    from fedmpdd_paper.reproduce import choose_methods
    from fedmpdd_paper.reproduce import reproduce as run_table
    from fedmpdd_paper.studies import load_study, reproduce_study, study_text
    from fedmpdd_paper.table_text import markdown
    from fedmpdd_paper.trainings import Workspace

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
    if only is not None and not (only and (wanted.tables or wanted.finetunings)):
        raise InputError(f"--methods {methods!r} chooses no row: name codecs of a table's rows, and a table")
    tables = choose_methods(wanted.tables, only) if wanted.tables else []
    finetunings = [load_finetuning(name) for name in wanted.finetunings]
    workspace = Workspace(out, device, data_dir)
    studies, figures = [load_study(name) for name in wanted.studies], list(wanted.figures)
    if done_only:
        done = [(table, done_methods(table, rows, seeds, workspace)) for table, rows in tables]
        tables = [(table, rows) for table, rows in done if rows]
        studies = [study for study in (done_study(study, seeds, workspace) for study in studies) if study.variants]
        figures = [name for name in figures if figure_is_done(name, workspace)]
        finetunings = [each for each in finetunings if (out / each.name / "results.json").is_file()]
    else:
        _make_folder(out)
    if not done_only and (tables or studies):
        messages.print("timing a few rounds of every row …")
        for table, rows in tables:
            messages.print(f"{table.name}: {estimate(table, rows, seeds, workspace)}", soft_wrap=True)
        for study in studies:
            messages.print(f"{study.name}: {estimate_study(study, seeds, workspace)}", soft_wrap=True)
    results: list[tuple[dict[str, Any], str]] = []  # documents, and what people read

    def keep(document: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> None:
        results.append((document, text(document)))

    with resume_hint("stopped; the same command goes on from there"), round_display() as start:
        on_round = ManyRounds(start, jobs)

        def on_attack(name: str) -> Callable[[str, float], None]:
            return lambda _, share: on_round(f"{name}, attacks in percent", round(100 * share), 100, None)

        shared: dict[str, Any] = {"jobs": jobs, "on_round": on_round}
        for table, rows in tables:
            attacks: dict[str, Any] = {"audited": audited, "on_attack": on_attack(table.name)}
            keep(run_table(table, workspace, seeds=seeds, methods=rows, **attacks, **shared), markdown)
        if wanted.latency:
            timed = done_latency(workspace) if done_only else reproduce_latency(workspace)
            if timed is not None:
                keep(timed, latency_text)
        for name in figures:
            keep(reproduce_figure(name, workspace, on_attack=on_attack(name), **shared), figure_text)
        for study in studies:
            keep(reproduce_study(study, workspace, seeds=seeds, **shared), study_text)
        for finetuning in finetunings:
            if done_only:
                keep(parse_json((out / finetuning.name / "results.json").read_text("utf-8")), finetuning_text)
                continue
            keep(
                reproduce_finetuning(finetuning, workspace, seeds=seeds, rows=only, together=jobs, on_round=on_round),
                finetuning_text,
            )
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


class ManyRounds:
    """The progress of many trainings, a few at a time: the ones that moved last are shown."""

    def __init__(self, start: Any, at_once: int) -> None:
        self._start, self._at_once = start, at_once
        self._shown: dict[str, Any] = {}  # in the order in which they moved

    def __call__(self, name: str, done: int, total: int, accuracy: float | None) -> None:
        """Show a round of one of them."""
        rounds = self._shown.pop(name, None) or self._start(name, total)
        self._shown[name] = rounds
        rounds.note(done, "" if accuracy is None else f"accuracy {accuracy:.1%}")
        while len(self._shown) > self._at_once:
            self._shown.pop(next(iter(self._shown))).close()


def verify(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="Some of estimator, norms, averaging, convergence, inversion; default: all of them."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to write a page with the curves of convergence.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the paper's lemmas and theorems, with a verdict each: about a minute.

    Example: fedmpdd verify norms inversion
    """
    from fedmpdd_paper.theory import convergence_page
    from fedmpdd_paper.theory import verify as measure
    from fedmpdd_paper.theory.claims import JOINT_LEVEL

    if plot is not None:
        training()
        from fedmpdd.pages.builder import check_page, write_page

        check_page(plot, "--plot")
    report = measure(messages.print, parts or (), curves_wanted=plot is not None)
    if plot is not None:
        write_page(plot, convergence_page(report.curves), "--plot")
        messages.print(f"page: {plot.resolve().as_uri()}", soft_wrap=True)
    if as_json:
        print_json(report.as_dict())
        return
    output(False).print(claims_table(report.rows, JOINT_LEVEL))
    output(False).print(corrections(report.rows))


def claims_table(rows: list[Any], level: float) -> Any:
    """Return claims of the paper beside what was measured, and the verdicts."""
    title = f"claims, measured; intervals hold all together with probability {1 - level:.2%}"
    cells = []
    for row in rows:
        value, low, high = row.measured
        margin = f" ± {max(high - value, value - low):.2g}" if high > low else ""
        cells.append([row.claim, f"{value:.4g}{margin}", f"{row.relation} {row.expected:.4g}", row.verdict])
    return table(title, {"claim": "left", "measured": "right", "claimed": "right", "verdict": "left"}, cells)


def corrections(rows: list[Any]) -> str:
    """Return what is true instead of the claims that were not confirmed, each once."""
    texts = dict.fromkeys(row.corrected for row in rows if row.verdict != "holds" and row.corrected)
    return "\n".join(["what is true instead:", *(f"  * {text}" for text in texts)]) if texts else ""
