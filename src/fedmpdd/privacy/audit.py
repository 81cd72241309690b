"""`fedmpdd audit`: every attack on every codec, on the same private images, with controls and a verdict.

    AUDIT/config.json            the run's config and the audit's
    AUDIT/cells/NAME.npz         one attack on one codec of one model: images, numbers, history; written when done
    AUDIT/images.json            hashes of the images and the model that were attacked
    AUDIT/results.json           rows, verdicts, meters
    AUDIT/index.html             the page
    AUDIT/MODEL.png              all reconstructions, a line per row of the results

An attack whose result is there is not made again, so that an audit that was stopped goes on where it was.
"""

import json
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import BadZipFile

import numpy as np
from pydantic import ValidationError

from fedmpdd.documents import read_json, write_json
from fedmpdd.errors import RunError
from fedmpdd.imports import OBJECT
from fedmpdd.pages.audits import CELLS as CELLS
from fedmpdd.pages.audits import CONFIG, display_name, file_name
from fedmpdd.pages.audits import RESULTS as RESULTS
from fedmpdd.privacy.attack_results import make_result
from fedmpdd.privacy.case import Case, make_case
from fedmpdd.privacy.config import Audit
from fedmpdd.privacy.page import write_page, write_picture
from fedmpdd.privacy.rows import AttackResults, Section, codec_summary, row_of
from fedmpdd.runs.folders import FolderLock

__all__ = ["METERED_SETTINGS", "PAGE", "is_attacked", "run_audit"]

PAGE, IMAGES = "index.html", "images.json"
METERED_SETTINGS = ("clients", "clients_per_round", "participation", "rounds", "partition")  # change no attack
OnProgress = Callable[[str, float], None]  # the attack at work, and how much of the whole audit is done


def run_audit(
    audit: Audit, folder: Path, data_dir: Path | None = None, progress: OnProgress | None = None, jobs: int = 1
) -> dict[str, Any]:
    """Attack everything that is not attacked yet, and write results and page. Returns the results.

    jobs: how many processes attack at a time; the results are the same.
    """
    audits = audit.by_model()
    cases = [make_case(part, data_dir) for part in audits]  # before anything is written: they may refuse the config
    for part, case in zip(audits, cases, strict=True):
        for text in part.codec_texts():
            case.codec(part, text).largest().revealed_bits(len(case.flat))  # it may be for larger models alone
    lock = _take(folder, audit)
    _check_same_images(folder, audits, cases)
    if jobs > 1:
        _attack_apart(audits, folder, data_dir, progress, jobs)
    sections = []
    for number, (part, case) in enumerate(zip(audits, cases, strict=True)):

        def report(name: str, share: float, number: int = number) -> None:
            if progress is not None:
                progress(name, (number + share) / len(audits))

        sections.append(_section(part, case, folder, report))
    results = {
        "rows": [row.as_dict() for section in sections for row in section.rows],
        "codecs": [
            codec_summary(section.audit, section.case, text, section.rows)
            for section in sections
            for text in section.audit.codec_texts()
        ],
        "guesses": {
            section.audit.config.model: {name: median(values) for name, values in section.guesses.items()}
            for section in sections
        },
        "config": audit.model_dump(mode="json"),
    }
    write_json(folder / RESULTS, results)
    for section in sections:
        write_picture(folder, section)
    write_page(folder / PAGE)
    del lock
    return results


def is_attacked(audit: Audit, folder: Path) -> bool:
    """Return whether all attacks of an audit, and those on its control, were made in this folder."""
    return all(
        _result_path(folder, part, text, attack).is_file()
        for part in audit.by_model()
        for text, attack in _attacks_of(part)
    )


def _check_same_images(folder: Path, audits: list[Audit], cases: list[Case]) -> None:
    """Refuse to mix results of several images or models: names of files and of objects stay the same when these change.

    Models of runs are left out: a run that goes on has another model, and results on it are of the one that was.
    """
    path = folder / IMAGES
    now = {}
    for part, case in zip(audits, cases, strict=True):
        digests = case.fingerprints()
        if part.audit.run is not None:
            del digests["parameters"]
        now[display_name(part.config.model)] = digests
    before = read_json(path, f"delete {folder} and repeat the audit") if path.is_file() else {}
    if not isinstance(before, dict):
        raise RunError(f"{path} is damaged: expected a table; delete {folder} and repeat the audit")
    for name, digests in now.items():
        kept = before.get(name, digests)
        for what in digests:
            if not isinstance(kept, dict) or kept.get(what) != digests[what]:
                raise RunError(f"{folder} holds an audit of other {what}; choose another folder, or delete it")
    write_json(path, {**before, **now})


def _attack_apart(
    audits: list[Audit], folder: Path, data_dir: Path | None, progress: OnProgress | None, jobs: int
) -> None:
    """Make the attacks that are missing, each in a process that is busy with no other one."""
    todo = [
        (part, text, attack)
        for part in audits
        for text, attack in _attacks_of(part)
        if not _result_path(folder, part, text, attack).is_file()
    ]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # a fork would take PyTorch's threads with it
        begun = {
            pool.submit(_make_apart, part, text, attack, folder, data_dir): f"{part.config.model}, {attack} on {text}"
            for part, text, attack in todo
        }
        try:
            for done, future in enumerate(as_completed(begun), start=1):
                future.result()
                if progress is not None:
                    progress(begun[future], done / len(begun))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make_apart(audit: Audit, text: str, attack: str, folder: Path, data_dir: Path | None) -> None:
    """Make one attack in a process of its own; cases are the same wherever they are made."""
    path = _result_path(folder, audit, text, attack)
    make_result(audit, make_case(audit, data_dir), text, attack, path, lambda _: None)


def _attacks_of(audit: Audit) -> list[tuple[str, str]]:
    return [(text, attack) for text in audit.codec_texts() for attack in audit.audit.attacks]


def _result_path(folder: Path, audit: Audit, text: str, attack: str) -> Path:
    return folder / CELLS / f"{file_name(audit.config.model)}-{file_name(text)}-{attack}.npz"


def _section(audit: Audit, case: Case, folder: Path, progress: OnProgress) -> Section:
    todo = _attacks_of(audit)
    guesses = case.guesses
    attacked: AttackResults = {}
    for number, (text, attack) in enumerate(todo):

        def report(share: float, number: int = number, name: str = f"{attack} on {text}") -> None:
            progress(f"{audit.config.model}, {name}", (number + share) / len(todo))

        report(0.0)
        path = _result_path(folder, audit, text, attack)
        if not path.is_file():
            make_result(audit, case, text, attack, path, report)
        try:
            with np.load(path) as stored:
                attacked[text, attack] = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, BadZipFile) as error:
            raise RunError(f"{path} is damaged: {error}; delete it, and the attack is made again") from None
    rows = [row_of(audit, case, text, attack, attacked, guesses["class mean"]) for text, attack in todo]
    progress(audit.config.model, 1.0)
    return Section(audit, case, guesses, attacked, rows)


def _take(folder: Path, audit: Audit) -> FolderLock:
    """Make the folder, or go on in one that belongs to the same audit."""
    document = audit.model_dump(mode="json")
    path = folder / CONFIG
    if folder.exists() and not (folder.is_dir() and (path.is_file() or not any(folder.iterdir()))):
        raise RunError(f"{folder} exists and is not an audit; choose another --out")
    try:
        (folder / CELLS).mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error}; choose another --out") from None
    if path.is_file():
        try:
            # Read as an audit, so that keys which did not exist then have the values that were meant.
            kept = read_json(path, "choose another --out")
            if isinstance(kept, dict) and isinstance(kept.get("audit"), dict):
                kept["audit"].setdefault("optimiser", audit.audit.optimiser)  # by the network's name, and the same
            before = Audit.model_validate(kept, context={"follow_imports": False}).model_dump(mode="json")
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "the whole"
            raise RunError(f"{path} is damaged: {where}: {problem['msg']}; choose another --out") from None
        # More codecs or attacks may join; whatever changes a number may not.
        for one in (before, document):
            one["audit"] = {
                key: value for key, value in one["audit"].items() if key not in ("codecs", "attacks", "models")
            }
            apart = ("codec", "model", "device", *METERED_SETTINGS)
            one["config"] = {key: value for key, value in one["config"].items() if key not in apart}
        if _unnumbered(before) != _unnumbered(document):
            raise RunError(f"{folder} holds an audit with other settings; choose another --out, or delete it")
    write_json(path, audit.model_dump(mode="json"))
    return lock


def _unnumbered(document: dict[str, Any]) -> str:
    """A document as text, without the numbers of objects: those count what a process had named before."""
    text = json.dumps(document, sort_keys=True)
    return re.sub(rf'("{OBJECT}[^"#]*)#\d+"', r'\1"', text)
