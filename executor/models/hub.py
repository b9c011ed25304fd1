"""A model from the Hugging Face hub: config, tokenizer and safetensors only, kept in the hub's own cache."""

from __future__ import annotations

from pathlib import Path

from superinfer.contracts.errors import ModelError
from superinfer.executor.models import local
from superinfer.executor.models.source import ModelSource, Progress

ALLOWED_FILES = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
]
SUBFOLDERS = ["*/*"]
METADATA_TIMEOUT_S = 10.0


def resolve(repo_id: str, progress: Progress) -> ModelSource:
    """Download `repo_id` (or find it in the hub's cache). Raises ModelError with the hub's reason."""
    from huggingface_hub import snapshot_download

    progress(f"download {repo_id}", 0, 1)
    try:
        directory = snapshot_download(
            repo_id,
            allow_patterns=ALLOWED_FILES,
            ignore_patterns=SUBFOLDERS,
            etag_timeout=METADATA_TIMEOUT_S,
        )
    # Its errors come from its own classes, the HTTP library under it, which differs by version, and OSError.
    except Exception as error:
        raise ModelError(
            f"model {repo_id} is no directory here and the Hugging Face hub did not give it: {_reason(error)}"
        ) from None
    progress(f"download {repo_id}", 1, 1)
    source = local.resolve(Path(directory))
    return ModelSource(name=repo_id, directory=source.directory, has_weights=source.has_weights)


def resolve_config(repo_id: str) -> Path:
    """Fetch the config of `repo_id` alone, for an analysis that needs no weights; the directory that holds it."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repo_id, "config.json", etag_timeout=METADATA_TIMEOUT_S)).parent
    except Exception as error:
        raise ModelError(
            f"model {repo_id} is no directory here and the Hugging Face hub did not give its config: {_reason(error)}"
        ) from None


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] or type(error).__name__
