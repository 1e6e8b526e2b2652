"""What a job file's `model:` may name, and where its files lie. Standard library only: stage programs import it.

tiny-llama               a model that ships with haloctl
/path/to/model           a folder in Hugging Face layout (anything with a leading ~, . or /)
meta-llama/Llama-3.1-8B  a hub id, with `revision:` beside it
shape:llama3.1-70b       the shape of a model (config only): exports and compiles anywhere, without weights
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

SHIPPED = Path(__file__).parent / "recipes" / "models"
SHAPES = Path(__file__).parent / "recipes" / "shapes"
SHAPE_PREFIX = "shape:"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class ModelKind(StrEnum):
    """Where a model comes from."""

    SHIPPED = "shipped"
    FOLDER = "folder"
    HUB = "hub"
    SHAPE = "shape"


@dataclass(frozen=True)
class ModelSource:
    """A model as a job names it. `folder` is where its files lie; for a hub model it is None until they are fetched."""

    kind: ModelKind
    name: str  #: what variants are called after: `tiny-llama`, `llama3.1-70B`
    text: str  #: what the job file says, made absolute for a folder
    folder: Path | None

    @property
    def called(self) -> tuple[str, ...]:
        """What a job file may call it."""
        return self.text, self.name

    @property
    def has_weights(self) -> bool:
        """Shapes have none: they can be exported and compiled, not run."""
        return self.kind is not ModelKind.SHAPE


def shipped_models() -> list[str]:
    """Names of the models that ship with haloctl."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


def shapes() -> list[str]:
    """Names that may follow `shape:`."""
    return sorted(path.stem for path in SHAPES.glob("*.json"))


def resolve(text: str, relative_to: Path | None = None) -> ModelSource:
    """Tell which model `text` names; a relative folder is taken from `relative_to` (the job file's folder).

    Raises ValueError with what the name may be. Does not look into the model's files.
    """
    if text.startswith(SHAPE_PREFIX):
        return _shape(text)
    if text.startswith(("/", ".", "~")):
        folder = ((relative_to or Path.cwd()) / Path(text).expanduser()).resolve()
        if not folder.is_dir():
            raise ValueError(f"the model folder {folder} does not exist")
        if not (folder / "config.json").is_file():
            raise ValueError(f"the model folder {folder} has no config.json: a folder in Hugging Face layout is needed")
        return ModelSource(ModelKind.FOLDER, safe_name(folder.name), str(folder), folder)
    if text in shipped_models():
        return ModelSource(ModelKind.SHIPPED, text, text, SHIPPED / text)
    if HUB_ID.fullmatch(text):
        return ModelSource(ModelKind.HUB, safe_name(text.partition("/")[2]), text, None)
    known = ", ".join([*shipped_models(), *(SHAPE_PREFIX + name for name in shapes())])
    raise ValueError(f"no model is called {text!r}: give one of {known}, a folder (with a leading ./ or /) or a hub id")


def _shape(text: str) -> ModelSource:
    name = text.removeprefix(SHAPE_PREFIX)
    if name.lower() not in shapes():
        raise ValueError(f"no shape is called {name!r}: there are {', '.join(shapes())}")
    pretty = re.sub(r"(\d+)b$", r"\1B", name.lower())  # llama3.1-70b -> llama3.1-70B, as trackers write it
    return ModelSource(ModelKind.SHAPE, pretty, SHAPE_PREFIX + name.lower(), SHAPES)


def shape_file(source: ModelSource) -> Path:
    """The config.json facts of a shape."""
    return SHAPES / f"{source.text.removeprefix(SHAPE_PREFIX)}.json"


def safe_name(text: str) -> str:
    """`text` with nothing in it that could be a path or a shell's business."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".") or "model"
