"""One call from a model, images and codecs to what an attacker gets of them."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.nn import functional

from fedmpdd.codecs import Codec
from fedmpdd.display import Sheet, as_text, share_display, table
from fedmpdd.errors import ConfigError
from fedmpdd.front.simulate import folder_of, object_named, plain
from fedmpdd.imports import name_object, quote
from fedmpdd.pages.audits import display_name
from fedmpdd.pages.builder import check_page, check_plotly
from fedmpdd.privacy.audit import run_audit
from fedmpdd.privacy.config import Audit, make_audit
from fedmpdd.privacy.images import as_images
from fedmpdd.privacy.page import write_page
from fedmpdd.runs.history import frame_of
from fedmpdd.simulation.config import RunConfig
from fedmpdd.tasks.losses import CrossEntropy, as_loss
from fedmpdd.uplink.codec_config import CodecConfig

ATTACKED = 8  # images, unless there are fewer than twice as many


@dataclass(frozen=True)
class AuditResult:
    """What an attacker gets of the updates of a model.

    Attributes:
        results: what `fedmpdd audit --json` prints: rows, codecs, and what needs no update.
        folder: with the page, the pictures and every reconstruction; it goes with the result if none was named.

    """

    results: dict[str, Any]
    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per attack and codec; those of the whole gradient, the control, come first."""
        rows: list[dict[str, Any]] = self.results["rows"]
        return rows

    @property
    def verdict(self) -> dict[str, str]:
        """The verdict on every codec: of all attacks the one that got furthest, or "linked"."""
        several = len({codec["model"] for codec in self.results["codecs"]}) > 1
        return {
            f"{display_name(codec['model'])}, {display_name(codec['codec'])}"
            if several
            else display_name(codec["codec"]): codec["verdict"]
            for codec in self.results["codecs"]
        }

    def to_frame(self) -> Any:
        """Return a DataFrame of pandas with a row per codec and attack.

        Example:
            >>> result.to_frame().groupby("codec").ssim.max()  # doctest: +SKIP

        """
        left_out = ("history", "ssim_each", "sentence")
        rows = [{key: value for key, value in row.items() if key not in left_out} for row in self.rows]
        return frame_of([{**row, **{key: display_name(row[key]) for key in ("model", "codec")}} for row in rows])

    def report(self, path: str | Path) -> Path:
        """Write the page: reconstructions beside the private images, verdicts and numbers. It loads nothing.

        Args:
            path: of the page; one that is there is replaced.

        Returns:
            The path.

        Example:
            >>> result.report("page.html")  # doctest: +SKIP

        """
        check_page(Path(path), "report")
        write_page(Path(path), self.folder)
        return Path(path)

    def table(self) -> Sheet:
        """Return attacks side by side: SSIM, that of the control, labels, linkage and verdicts."""
        means = self.results["guesses"].items()
        guesses = "; ".join(f"{display_name(model)}: class mean {ssim['class mean']:.2f}" for model, ssim in means)
        columns = {"model": "left", "codec": "left", "attack": "left", "SSIM": "right", "control": "right"}
        columns |= {"labels": "right", "linkage": "right", "verdict": "left"}
        several = len(self.results["guesses"]) > 1
        if not several:
            del columns["model"]
        title = f"median SSIM, and that of the same attack on the whole gradient ({guesses})"
        return table(title, columns, [_cells_of(row)[0 if several else 1 :] for row in self.rows])

    def notes(self) -> list[str]:
        """Return the verdicts, a line each."""
        return [f"{name}: {word}" for name, word in self.verdict.items()]

    def __repr__(self) -> str:
        return as_text(self.table(), self.notes())


def audit(
    model: nn.Module | Callable[[], nn.Module],
    images: Any,
    codecs: Sequence[Codec | str],
    *,
    labels: Any = None,
    public: Any = None,
    loss: Callable[..., Any] = functional.cross_entropy,
    attacks: Sequence[str] = ("dlg", "adaptive"),
    count: int | None = None,
    batch: int = 1,
    seen_rounds: int = 1,
    grants_labels: bool = True,
    effort: float = 1.0,
    trained: str | Path | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    size: int | Sequence[int] | None = None,
    device: Literal["cpu", "cuda", "auto"] = "auto",
    out: str | Path | None = None,
    seed: int = 17,
    progress: bool = True,
    **settings: Any,
) -> AuditResult:
    """Attack the updates that clients would send of their images, and say what an attacker gets.

    Every attack is made on the whole gradient too, the control: where it fails there, its failure says nothing.

    Args:
        model: a module, which is copied and attacked with the parameters that it has; or a function that makes one.
        images: an array or tensor [images, channels, height, width], a dataset of PyTorch or Hugging Face, or a folder
            of pictures, with a folder per class or without. Bytes are divided by 255; floats are what the model takes.
        codecs: what clients may send, objects such as `MPDD(m=400)` or words such as "mpdd:m=400".
        labels: one per image, where the images come without. Of a dataset or folder without labels, every image is of
            the class that the model sees in it.
        public: other images of the kind, in any of these forms, which an attacker knows. By default those of `images`
            that are not attacked.
        loss: (outputs, targets) -> scalar, or (model, batch) -> scalar, as of a Task. Cross-entropy by default.
        attacks: some of dlg, idlg, inverting-gradients, gi-nas and adaptive, see docs/privacy.md.
        count: how many private batches; 8 images by default, or half of them where there are fewer than 16.
        batch: images in each.
        seen_rounds: how many updates of the same images the attacker has.
        grants_labels: whether the attacker is told the labels.
        effort: multiplies the iterations of all attacks.
        trained: a run folder, whose newest checkpoint gives the parameters.
        mean: inputs of the model are (pixel − mean) / std, per channel or one for all, of pixels from 0 to 1.
        std: likewise.
        size: height and width that the pictures of a folder are scaled to, or one number for both.
        device: "cuda" for a GPU, which pays for large models; else the CPU.
        out: a folder, in which a stopped audit goes on by the same call. None to keep nothing on the disk.
        seed: of the choice of images, of keys and attacks.
        progress: whether to show on standard error how far it is.
        settings: any other key of a config, docs/federation.md. Those of a whole run change what the meter counts
            alone: rounds=648, clients=100, participation=0.5.

    Returns:
        The result, with `verdict`, `rows`, `to_frame`, `report`, and a table where it is printed.

    Example:
        >>> result = audit(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 4)), pictures, ["mpdd:m=9"],
        ...                labels=labels, effort=0.01, progress=False)
        >>> list(result.verdict)
        ['fedsgd', 'mpdd:m=9']

    """
    if isinstance(codecs, str | Codec) or not isinstance(codecs, Iterable | None):
        raise ConfigError(f"codecs = {quote(codecs)}: expected a list of codecs, like [MPDD(m=400), 'qsgd:bits=4']")
    if not codecs:
        raise ConfigError(
            'codecs is empty; expected some, like [MPDD(m=400)], or ["fedsgd"] for the whole gradient alone'
        )
    if isinstance(attacks, str) or not isinstance(attacks, Iterable):
        example = attacks if isinstance(attacks, str) else "dlg"
        raise ConfigError(f"attacks = {quote(attacks)}: expected a list of attacks, like [{example!r}]")
    if not isinstance(grants_labels, bool):
        raise ConfigError(f"grants_labels = {quote(grants_labels)}: expected True or False")
    batch = plain(batch)
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ConfigError(f"batch = {quote(batch)}: expected a number of images, 1 or more")
    out_folder = folder_of(out)
    for key in settings:
        if key not in RunConfig.model_fields or key in ("dataset", "model", "loss", "codec", "pixels"):
            raise ConfigError(f"{key} is no setting of an audit; see help(fedmpdd.audit) and docs/federation.md")
    name = Path(images).name if isinstance(images, str | Path) else "images"
    brought = as_images(images, labels, public=public, name=name, mean=mean, std=std, size=size)
    texts = [codec if isinstance(codec, str) else CodecConfig.of(codec).words for codec in codecs]
    asked = {
        "attacks": tuple(attacks),
        "codecs": tuple(texts),
        "images": max(1, min(ATTACKED, len(brought.images) // 2) // batch) if count is None else count,
        "rounds": seen_rounds,
        "labels": "known" if grants_labels else "found",
        "effort": effort,
        "seed": seed,
        "run": None if trained is None else str(trained),
    }
    config = {
        "dataset": name_object(brought),
        "pixels": "unit",
        "model": object_named(model),
        "loss": "cross-entropy" if isinstance(as_loss(loss), CrossEntropy) else object_named(loss),
        "device": device,
        "batch": batch,
        "seed": seed,
        **settings,
    }
    wanted = make_audit(config, asked)
    if out_folder is not None:
        return audit_folder(wanted, out_folder, progress=progress)
    folder = Path(tempfile.mkdtemp(prefix="fedmpdd-audit-"))
    try:
        result = audit_folder(wanted, folder, progress=progress)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def audit_folder(
    wanted: Audit,
    folder: Path,
    data_dir: Path | None = None,
    *,
    jobs: int = 1,
    progress: bool = True,
) -> AuditResult:
    """Return the result of an audit in a folder, in which it goes on where it was stopped.

    Args:
        wanted: what is attacked, and how.
        folder: of the audit.
        data_dir: where the datasets of this package are.
        jobs: attacks at a time, a process each.
        progress: whether to show on standard error how far it is.

    """
    check_plotly()
    with share_display("audit") if progress else nullcontext() as show:
        results = run_audit(wanted, folder, data_dir, show, jobs)
    return AuditResult(results, folder)


def _cells_of(row: dict[str, Any]) -> list[str]:
    linked = "–" if row["linkage"] is None else f"{row['linkage']:.0%}"
    scores = [f"{row['ssim']:.2f}", f"{row['control_ssim']:.2f}", f"{row['labels_found']:.0%}", linked]
    return [display_name(row["model"]), display_name(row["codec"]), row["attack"], *scores, row["verdict"]]
