"""What is audited: a run's config, and an `[audit]` table beside it."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmpdd.codecs import Codec
from fedmpdd.documents import read_json
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.imports import Trust, check_trust, import_paths, is_import_path
from fedmpdd.pages.audits import CONFIG, IMAGE_FOLDER, file_name
from fedmpdd.privacy.attacks import ATTACKS
from fedmpdd.simulation.config import RunConfig, apply_overrides, codec_config, parse_config, read_table
from fedmpdd.uplink import Protection
from fedmpdd.uplink.codec_config import codec_list, codec_overrides, codec_words, explain

__all__ = ["Audit", "AuditConfig", "load_audit"]


class AuditConfig(BaseModel):
    """How the updates of a run are attacked. Models and codecs are those of the run, unless others are named.

    labels: "known" grants them to the attacker, "found" does not. rounds: how many rounds with the same examples the
    attacker has seen. run: a run folder whose newest checkpoint is the model; without it, the initial model.
    optimiser: of dlg and idlg: "measured" chooses by what the network does, see fedmpdd.privacy.curvature.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    attacks: tuple[str, ...] = Field(default=("dlg", "adaptive"), strict=False)
    models: tuple[str, ...] = Field(default=(), strict=False)
    codecs: tuple[str, ...] = Field(default=(), strict=False)
    images: int = Field(default=8, ge=1, le=1000)
    batch: int | None = Field(default=None, ge=1, le=64)
    rounds: int = Field(default=1, ge=1, le=1000)
    labels: Literal["known", "found"] = "known"
    effort: float = Field(default=1.0, gt=0, le=100)
    seed: int = Field(default=17, ge=0, lt=2**63)
    run: str | None = None
    optimiser: Literal["measured", "lbfgs", "adam"] = "measured"


class Audit(BaseModel):
    """A run, how it is attacked, and which codecs: all that an audit's results depend on."""

    model_config = ConfigDict(frozen=True)

    config: RunConfig
    audit: AuditConfig

    def codec_texts(self) -> list[str]:
        """The codecs to attack, as texts; FedSGD, the control, comes first."""
        texts = self.audit.codecs or tuple(dict.fromkeys(map(_text_of, self.config.of_links)))
        return ["fedsgd", *(text for text in texts if text != "fedsgd")]

    def by_model(self) -> "list[Audit]":
        """One audit per model."""
        names = self.audit.models or (self.config.model,)
        return [Audit(config=self.config.model_copy(update={"model": name}), audit=self.audit) for name in names]

    def codec(self, text: str) -> Codec:
        """Return the codec that a text describes."""
        return codec_config(self.config, text).codec.build()

    def protection(self, text: str) -> Protection | None:
        """Return what protects the updates of that codec, if anything does."""
        return codec_config(self.config, text).codec.protection()

    @property
    def batch(self) -> int:
        """Examples in a client's batch."""
        return self.audit.batch or self.config.batch


def load_audit(source: str, overrides: list[str], *, codecs: str | None = None, run: Path | None = None) -> Audit:
    """Read a config by shipped name or path; overrides of the audit begin with `audit.`."""
    values = apply_overrides(read_table(source), overrides)
    table = values.pop("audit", {})
    if not isinstance(table, dict):
        raise ConfigError(f"audit = {table!r:.60}: expected a table of keys, like audit.images=4")
    if codecs is not None:
        table["codecs"] = codec_list(codecs)
    if run is not None:
        table["run"] = str(run)
    return make_audit(values, table)


def make_audit(config: dict[str, Any], asked: dict[str, Any]) -> Audit:
    """Return an audit of a run's config and an `[audit]` table, or raise ConfigError.

    Args:
        config: the table of a run's config.
        asked: the keys of AuditConfig.

    """
    for key in asked:
        if key not in AuditConfig.model_fields:
            raise ConfigError(f"audit.{key} is no key of an audit; its keys are {', '.join(AuditConfig.model_fields)}")
    try:
        chosen = AuditConfig.model_validate(asked)
    except ValidationError as error:
        raise ConfigError(explain(error.errors()[0], ("audit",))) from None
    if not chosen.attacks:
        raise ConfigError(f"audit.attacks is empty; use some of {', '.join(ATTACKS)}")
    for name in chosen.attacks:
        if name not in ATTACKS:
            raise ConfigError(f"audit.attacks: {name!r} is unknown; use some of {', '.join(ATTACKS)}")
    audit = Audit(config=parse_config(config), audit=chosen)
    files: dict[str, str] = {}
    for text in audit.codec_texts():
        codec = audit.codec(text)
        if codec.source == "losses":
            raise ConfigError(f"audit.codecs: {text} sends losses, not gradients; there is no attack on those here yet")
        if file_name(text) in files:
            other = files[file_name(text)]
            same = "is there twice" if other == text else f"and {other} would share their files"
            raise ConfigError(f"audit.codecs: {text} {same}; leave one of them out")
        files[file_name(text)] = text
    _check_batch(audit)
    return audit


def _check_batch(audit: Audit) -> None:
    """Refuse attacks that are for batches of one."""
    if audit.batch == 1:
        return
    for name in audit.audit.attacks:
        if name == "idlg":
            raise ConfigError(f"audit.attacks: idlg reads one label, and batches have {audit.batch} images; use dlg")
        if name != "dlg" and audit.audit.labels == "found":
            raise ConfigError(
                f"audit.attacks: {name} tries every class, too many for batches of {audit.batch}; grant labels "
                "(audit.labels=known), or use dlg, which optimises them"
            )


def read_audit_config(folder: Path, trust_imports: Trust) -> Audit:
    """Return the audit that a folder was begun with.

    Args:
        folder: of the audit.
        trust_imports: what the folder names may be imported: see fedmpdd.imports.check_trust.

    """
    path = folder / CONFIG
    if not path.is_file():
        raise RunError(f"{folder} is no audit: it has no {CONFIG}; begin one with fedmpdd audit CONFIG --out {folder}")
    document = read_json(path, "start the audit again in another folder")
    tables = (document.get("config"), document.get("audit")) if isinstance(document, dict) else (None, None)
    config, asked = tables
    if not isinstance(config, dict) or not isinstance(asked, dict):
        raise RunError(f"{path} is damaged: expected tables config and audit; start the audit again in another folder")
    check_trust(_paths_in(config, asked), str(path), trust_imports)
    return make_audit(config, asked)


def _paths_in(config: dict[str, Any], asked: dict[str, Any]) -> dict[str, str]:
    """The import paths that an audit names; the pictures of a folder are read by this package."""
    codecs = asked.get("codecs") or []
    texts = {f"audit.codecs.{i}": codec_overrides(str(text))[0] for i, text in enumerate(codecs)}
    names = {key: text.removeprefix("codec.name=") for key, text in texts.items()}
    paths = import_paths(config) | import_paths({"models": asked.get("models") or []}, "audit")
    paths |= {key: name for key, name in names.items() if is_import_path(name)}
    return {key: text for key, text in paths.items() if not text.startswith(f"{IMAGE_FOLDER}(")}


def _text_of(config: RunConfig) -> str:
    values = config.codec.model_dump(mode="json")
    unset = {key: field.default for key, field in type(config.codec).model_fields.items()}
    parameters = {
        key: value
        for key, value in values.items()
        if key not in ("name", "keys", "error_feedback") and not (key in unset and value == unset[key])
    }
    return codec_words(values["name"], parameters)
