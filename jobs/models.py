"""The models that a job file's `model` can name, and where their files are.

Stage programs import this module, so it uses only the standard library.


tiny-llama               a model that ships with haloctl
/path/to/model           a folder in Hugging Face layout (anything with a leading ~, . or /)
meta-llama/Llama-3.1-8B  a hub id, with `revision:` beside it
shape:llama3.1-70b       the shape of a model (config only): exports and compiles anywhere, without weights
/path/to/program.mlir    a program that haloctl did not make: MLIR, ONNX, or compiled (.vmfb)
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"  #: the job files that ship with haloctl, and what they name
SHIPPED = RECIPES / "models"
SHIPPED_TASKS = RECIPES / "tasks"
SHAPES = RECIPES / "shapes"
SHAPE_PREFIX = "shape:"
#: The endings of programs that haloctl did not make: MLIR as text or bytecode, ONNX, and compiled ones.
PROGRAM_ENDINGS = (".mlir", ".mlirbc", ".onnx", ".vmfb")
MAX_NAME = 100  #: characters of a model's name, which is a part of names of files
#: The endings of the files in a model's folder that tools may read: config, weights, tokenizer, chat template, adapter.
CONTENT_ENDINGS = (".json", ".safetensors", ".model", ".txt", ".jinja", ".spm", ".tiktoken")
#: as the hub allows them: https://huggingface.co/docs/huggingface_hub/package_reference/utilities#validate-repo-id
HUB_ID = re.compile(
    r"(?=[^/]+/[^/]+$)(?!.{97})(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_]([\w.-]*[A-Za-z0-9_])?", re.ASCII
)


class ModelKind(StrEnum):
    """The origin of a model."""

    SHIPPED = "shipped"
    FOLDER = "folder"
    HUB = "hub"
    SHAPE = "shape"
    PROGRAM = "program"  #: a file with a whole program


@dataclass(frozen=True)
class ModelSource:
    """A model as a job names it. `folder` has its files; for a hub model it is None, because they are fetched later."""

    kind: ModelKind
    name: str  #: the beginning of its variants' names: `tiny-llama`, `llama3.1-70B`
    text: str  #: the text of the job file; the absolute path of a folder
    folder: Path | None

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that a job file can call it by."""
        return self.text, self.name

    @property
    def has_weights(self) -> bool:
        """Whether it can run; a shape can only be exported and compiled."""
        return self.kind is not ModelKind.SHAPE


def shipped_models() -> list[str]:
    """Return the names of the models that ship with haloctl."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


def shapes() -> list[str]:
    """Return the names that can follow `shape:`."""
    return sorted(path.stem for path in SHAPES.glob("*.json"))


def resolve(text: str, relative_to: Path | None = None) -> ModelSource:
    """Return the model that `text` names; a relative folder is relative to `relative_to`, the job file's folder.

    Raises ValueError, which says what names there are. Does not read the model's files.
    """
    if text.startswith(SHAPE_PREFIX):
        return _shape(text)
    if is_path(text):
        folder = resolve_path(text, relative_to or Path.cwd())
        if folder.name.endswith(PROGRAM_ENDINGS) and not folder.is_dir():
            return _program(folder)
        if not folder.is_dir():
            raise ValueError(f"the model folder {folder} does not exist")
        if not (folder / "config.json").is_file():
            raise ValueError(f"the model folder {folder} has no config.json: a folder in Hugging Face layout is needed")
        if len(folder.name) > MAX_NAME:
            raise ValueError(f"the name of the model folder {folder} is longer than {MAX_NAME} characters: shorten it")
        return ModelSource(ModelKind.FOLDER, safe_name(folder.name), str(folder), folder)
    if text in shipped_models():
        return ModelSource(ModelKind.SHIPPED, text, text, SHIPPED / text)
    if HUB_ID.fullmatch(text):
        return ModelSource(ModelKind.HUB, safe_name(text.partition("/")[2]), text, None)
    known = ", ".join([*shipped_models(), *(SHAPE_PREFIX + name for name in shapes())])
    raise ValueError(
        f"no model is called {shorten(text)!r}: give one of {known}, a folder (with a leading ./ or /) or a hub id"
    )


def is_path(text: str) -> bool:
    """Return whether a model is named by its path."""
    return text.startswith(("/", ".", "~"))


def _program(file: Path) -> ModelSource:
    if not file.is_file():
        raise ValueError(f"the program {file} does not exist")
    name = safe_name(file.stem)
    if len(name) > MAX_NAME:
        raise ValueError(f"the name of the program {file} is longer than {MAX_NAME} characters: shorten it")
    return ModelSource(ModelKind.PROGRAM, name, str(file), None)


def resolve_path(text: str, relative_to: Path) -> Path:
    """Return the absolute path that a user names, without links. Raises ValueError for one that no file can have."""
    try:
        path = (relative_to / Path(text).expanduser()).resolve()
        path.exists()  # raises for a name that is too long
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links and an unknown user are RuntimeErrors
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"{shorten(text)} can't be a path: {reason}") from None
    return path


def shorten(text: str, size: int = 100) -> str:
    """Return a text, or its beginning if it is too long for a message."""
    return text if len(text) <= size else f"{text[:size]}..."


def _shape(text: str) -> ModelSource:
    name = text.removeprefix(SHAPE_PREFIX)
    if name.lower() not in shapes():
        raise ValueError(f"no shape is called {shorten(name)!r}: there are {', '.join(shapes())}")
    pretty = re.sub(r"(\d+)b$", r"\1B", name.lower())  # llama3.1-70b becomes llama3.1-70B, as trackers write it
    return ModelSource(ModelKind.SHAPE, pretty, SHAPE_PREFIX + name.lower(), SHAPES)


def content_files(folder: Path) -> list[Path]:
    """Return the files in a model's folder that its content consists of, by name; subfolders have none."""
    files = (path for path in folder.iterdir() if path.name.endswith(CONTENT_ENDINGS) and not path.name.startswith("."))
    return sorted(path for path in files if path.is_file())


def shape_file(source: ModelSource) -> Path:
    """Return the file with the config of a shape."""
    return SHAPES / f"{source.text.removeprefix(SHAPE_PREFIX)}.json"


def safe_name(text: str) -> str:
    """Return `text` without characters that mean something in a path or a shell."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".") or "model"
