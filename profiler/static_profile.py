"""The record of a static analysis: a model's shapes and four dimensions, from a config or a graph, without a device."""

from __future__ import annotations

from pathlib import Path

import msgspec

from superinfer.contracts.errors import ModelError
from superinfer.profiler.decoder_shapes import ModelArchitecture
from superinfer.profiler.static import StaticFeatures, static_features

STATIC_SCHEMA = "superinfer.static-profile/1"


class StaticProfile(msgspec.Struct, frozen=True, kw_only=True, rename={"format": "schema"}):
    """One model at one precision. `source` says where the shapes come from; `notes` what a reader should know.

    `published_parameters` is what the model's publisher counts, where somebody looked it up.
    """

    format: str = STATIC_SCHEMA
    model: str
    dtype: str
    source: str = ""
    published_parameters: int | None = None
    notes: list[str] = []
    architecture: ModelArchitecture
    static: StaticFeatures


def static_profile(
    model: str,
    architecture: ModelArchitecture,
    dtype: str,
    *,
    source: str = "",
    published_parameters: int | None = None,
    notes: list[str] | None = None,
    prefill_tokens: int = 512,
    decode_context: int = 512,
) -> StaticProfile:
    """Analyse an architecture; `prefill_tokens` and `decode_context` say at what lengths its arithmetic is counted."""
    return StaticProfile(
        model=model,
        dtype=dtype,
        source=source,
        published_parameters=published_parameters,
        notes=notes or [],
        architecture=architecture,
        static=static_features(architecture, dtype, prefill_tokens=prefill_tokens, decode_context=decode_context),
    )


def encode_static(profile: StaticProfile) -> bytes:
    """The record as indented JSON, a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n"


def decode_static(data: bytes, source: str) -> StaticProfile:
    """Read a record; ModelError says what is wrong with it."""
    try:
        profile = msgspec.json.decode(data, type=StaticProfile)
    except msgspec.MsgspecError as error:
        raise ModelError(
            f"{source} is not a static profile: {error}; make one with: superinfer profile MODEL --static --out FILE"
        ) from None
    if profile.format != STATIC_SCHEMA:
        raise ModelError(f"{source} has schema {profile.format!r}, not {STATIC_SCHEMA!r}")
    return profile


def load_static(path: Path) -> StaticProfile:
    """Read a record's file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror})") from None
    return decode_static(data, str(path))
