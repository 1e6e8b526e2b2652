"""The files that a job file names, besides its models."""

from collections.abc import Callable
from dataclasses import replace

from jobs.input_files import InputFile, InputFolder
from jobs.job_file.spec import JobSpec
from jobs.problems import Key
from jobs.quantizers import QUANTIZERS, FileOption

Change = Callable[[Key, InputFile], InputFile]
ChangeFolder = Callable[[Key, InputFolder], InputFolder]


def _as_it_is(key: Key, folder: InputFolder) -> InputFolder:
    return folder


def with_files(spec: JobSpec, change: Change, change_folder: ChangeFolder = _as_it_is) -> JobSpec:
    """Return the spec with its folders, then each of its files changed; both are given the key, too."""

    def changed(section: str, key: str, file: InputFile | None) -> InputFile | None:
        return None if file is None else change((section, key), file)

    def changed_option(quantizer: str, key: str, value: object) -> object:
        if not isinstance(QUANTIZERS[quantizer].options[key], FileOption):
            return value
        file = value if isinstance(value, InputFile) else InputFile(str(value))
        return change(("quantize", "options", quantizer, key), file)

    options = {
        quantizer: {key: changed_option(quantizer, key, value) for key, value in values.items()}
        for quantizer, values in spec.quantize.options.items()
    }
    program = {
        "inputs": [
            change(("program", "inputs", index), value) if isinstance(value, InputFile) else value
            for index, value in enumerate(spec.program.inputs)
        ],
        "expected": [change(("program", "expected", index), file) for index, file in enumerate(spec.program.expected)],
    }
    key = ("evaluate", "tasks")
    tasks = spec.evaluate.tasks and change_folder(key, spec.evaluate.tasks)
    if tasks:
        tasks = replace(tasks, files={name: change(key, file) for name, file in tasks.files.items()})
    quantize = {"text": changed("quantize", "text", spec.quantize.text), "options": options}
    numerics = {"text": changed("numerics", "text", spec.numerics.text)}
    finetune = {key: changed("finetune", key, getattr(spec.finetune, key)) for key in ("data", "held_out")}
    return spec.model_copy(
        update={
            "finetune": spec.finetune.model_copy(update=finetune),
            "quantize": spec.quantize.model_copy(update=quantize),
            "numerics": spec.numerics.model_copy(update=numerics),
            "evaluate": spec.evaluate.model_copy(update={"tasks": tasks}),
            "program": spec.program.model_copy(update=program),
        }
    )
