"""Which model a Triton Inference Server model repository entry serves, from its config.pbtxt."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from superinfer.contracts.errors import ModelError, ResourceError

CONFIG_NAME = "config.pbtxt"
MODEL_PARAMETERS = ("gpt_model_path", "engine_dir", "hf_model", "model", "model_path", "model_id", "tokenizer_dir")
"""Parameters that name a model, the likeliest first."""


def triton_reference(path: Path) -> str:
    """The path, library name or hub id of the model that a config.pbtxt (or its folder) serves.

    Looks at the backend: the graph of ONNX Runtime, the model.json of vLLM, the engine of TensorRT-LLM, a Hugging Face
    folder beside the config, the steps of an ensemble. Raises ModelError where none of them names a model.
    """
    return _reference(path / CONFIG_NAME if path.is_dir() else path, seen=frozenset())


def _reference(file: Path, seen: frozenset[Path]) -> str:
    config = _parse(file)
    folder = file.parent
    version = _latest_version(folder)
    backend = config.backend or config.platform
    if config.ensemble_scheduling.step or backend == "ensemble":
        return _ensemble_reference(file, config, seen | {file.resolve()})
    if backend.startswith("onnxruntime"):
        graph = (version or folder) / (config.default_model_filename or "model.onnx")
        if graph.is_dir():
            graph = graph / "model.onnx"
        if not graph.exists():
            raise ModelError(f"{file}: names {graph}, which does not exist; an ONNX graph is needed there")
        return str(graph)
    if version is not None and (version / "model.json").exists():
        return _vllm_reference(version / "model.json")
    values = {entry.key: entry.value.string_value for entry in config.parameters}
    for key in MODEL_PARAMETERS:
        # A template that nobody has filled in looks like ${engine_dir}.
        if (value := values.get(key, "")) and "${" not in value:
            return _located(value, folder)
    for place in (version, folder):
        if place is not None and (place / "config.json").exists():
            return str(place)
    raise ModelError(
        f"{file}: backend {backend or 'none'!r} names no model; accepted: onnxruntime with a graph, vllm with a "
        f"model.json, a config.json beside it, an ensemble of these, or one of the parameters "
        f"{', '.join(MODEL_PARAMETERS)}"
    )


def _ensemble_reference(file: Path, config: Any, seen: frozenset[Path]) -> str:
    reasons = []
    for step in config.ensemble_scheduling.step:
        member = file.parent.parent / step.model_name / CONFIG_NAME
        if member.resolve() in seen:
            continue
        try:
            return _reference(member, seen)
        except ModelError as error:
            reasons.append(str(error))
    raise ModelError(f"{file}: no step of this ensemble names a model ({'; '.join(reasons) or 'it has no steps'})")


def _vllm_reference(file: Path) -> str:
    try:
        model = json.loads(file.read_text("utf-8")).get("model")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(model, str) or not model:
        raise ModelError(f"{file}: model is {model!r}; a folder or a hub id is needed")
    return _located(model, file.parent)


def _located(value: str, folder: Path) -> str:
    """A relative path is relative to the file that names it; what is no path there stays a name."""
    beside = folder / value
    return str(beside) if beside.exists() else value


def _latest_version(folder: Path) -> Path | None:
    versions = [each for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()]
    return max(versions, key=lambda each: int(each.name), default=None)


def _parse(file: Path) -> Any:
    try:
        from google.protobuf import text_format
    except ImportError:
        raise ResourceError(f"reading {file.name} needs the protobuf package: pip install 'superinfer[onnx]'") from None
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None
    try:
        return text_format.Parse(text, _message_class()(), allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ModelError(f"{file} is not a Triton model configuration in text format: {error}") from None


SKIPPED = [
    "version_policy",
    "input",
    "output",
    "batch_input",
    "batch_output",
    "optimization",
    "dynamic_batching",
    "sequence_batching",
    "instance_group",
    "cc_model_filenames",
    "metric_tags",
    "model_warmup",
    "model_operations",
    "model_transaction_policy",
    "model_repository_agents",
    "response_cache",
]
"""Messages of ModelConfig that say nothing about the model. The parser has to know that they are messages."""

SKIPPED_WITHIN = [
    "control_input",
    "control",
    "state",
    "initial_state",
    "rate_limiter",
    "resources",
    "secondary_devices",
    "graph_spec",
    "agents",
    "inputs",
    "execution_accelerators",
    "gpu_execution_accelerator",
    "cpu_execution_accelerator",
    "parameters",
    "priority_queue_policy",
    "direct",
    "oldest",
]


@cache
def _message_class() -> Any:
    """The part of Triton's ModelConfig message that tells which model is served; other fields are skipped."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="superinfer/triton_model.proto", package="superinfer.triton")

    def add(message: Any, name: str, number: int, *, repeated: bool = False, type_name: str = "") -> None:
        message.field.add(
            name=name,
            number=number,
            label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            type=kinds.TYPE_MESSAGE if type_name else kinds.TYPE_STRING,
            type_name=f".superinfer.triton.{type_name}" if type_name else None,
        )

    value = file.message_type.add(name="Parameter")
    add(value, "string_value", 1)
    entry = file.message_type.add(name="ParameterEntry")
    add(entry, "key", 1)
    add(entry, "value", 2, type_name="Parameter")
    step = file.message_type.add(name="Step")
    add(step, "model_name", 1)
    ensemble = file.message_type.add(name="Ensemble")
    add(ensemble, "step", 1, repeated=True, type_name="Step")
    config = file.message_type.add(name="ModelConfig")
    for number, name in enumerate(("name", "platform", "backend", "default_model_filename"), 1):
        add(config, name, number)
    add(config, "parameters", 5, repeated=True, type_name="ParameterEntry")
    add(config, "ensemble_scheduling", 6, type_name="Ensemble")
    for number, name in enumerate(SKIPPED, 10):
        add(config, name, number, repeated=True, type_name="Skipped")
    skipped = file.message_type.add(name="Skipped")
    for number, name in enumerate(SKIPPED_WITHIN, 1):
        add(skipped, name, number, repeated=True, type_name="Skipped")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("superinfer.triton.ModelConfig"))
