"""Request bodies of the OpenAI API: what is taken, what is ignored as without effect, what is refused by name."""

from __future__ import annotations

import difflib
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from superinfer.scheduler.request import SamplingParams

MAX_CHOICES = 128
MAX_STOP_STRINGS = 4

IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
        "spaces_between_special_tokens",
    }
)
"""Fields that never change the output."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "use_beam_search": (None, False),
    "min_tokens": (None, 0),
    "length_penalty": (None, 1, 1.0),
    "include_stop_str_in_output": (None, False),
    "skip_special_tokens": (None, True),
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
}
"""Fields that are not supported, with the values that ask for nothing and are therefore accepted."""


def _is_neutral(value: object, accepted: tuple[Any, ...]) -> bool:
    # 0 == False in Python, but `logprobs: 0` asks for log-probabilities and `logprobs: false` does not.
    return any(type(value) is type(neutral) and value == neutral for neutral in accepted)


class StreamOptions(BaseModel):
    """`stream_options`; obfuscation is a padding of OpenAI's own transport and has no effect here."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(BaseModel):
    """What completions and chat completions have in common. null is the same as not given."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _sort_out_other_fields(cls, body: Any) -> Any:
        """Drop what has no effect; name the first field that is unsupported or unknown."""
        if not isinstance(body, dict):
            return body
        taken = {}
        for name, value in body.items():
            if name in cls.model_fields:
                taken[name] = value
            elif name in NEUTRAL:
                if not _is_neutral(value, NEUTRAL[name]):
                    raise PydanticCustomError(
                        "unsupported_parameter",
                        "Unsupported parameter: {param} is not supported by this server; leave it out.",
                        {"param": name},
                    )
            elif name not in IGNORED:
                near = difflib.get_close_matches(name, cls.model_fields, n=1)
                raise PydanticCustomError(
                    "unknown_parameter",
                    "Unknown parameter: {param}{hint}.",
                    {"param": name, "hint": f" (did you mean {near[0]}?)" if near else ""},
                )
        return taken

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stop(cls, stop: Any) -> Any:
        strings = [stop] if isinstance(stop, str) else stop
        if strings is None or (
            isinstance(strings, list)
            and len(strings) <= MAX_STOP_STRINGS
            and all(isinstance(string, str) and string for string in strings)
        ):
            return stop
        raise PydanticCustomError(
            "invalid_stop", "must be a non-empty string or a list of at most {most} of them", {"most": MAX_STOP_STRINGS}
        )

    @model_validator(mode="after")
    def _check_stream_options(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "unsupported_parameter",
                "stream_options is only allowed together with stream: true.",
                {"param": "stream_options"},
            )
        return self

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        """True where the stream shall end with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_params(self, max_tokens: int, choice: int) -> SamplingParams:
        """The engine's options for one choice. Each choice draws its own numbers, repeatable when a seed is given."""
        seed = secrets.randbits(63) if self.seed is None else (self.seed + choice) & (2**63 - 1)
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=seed,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )


PROMPT_FORMS = "must be a string, a list of strings, a list of token ids, or a list of such lists; none of them empty"


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_prompt(cls, prompt: Any) -> Any:
        def is_ids(value: Any) -> bool:
            return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)

        listed = isinstance(prompt, list) and bool(prompt)
        if listed and len(prompt) > MAX_CHOICES and not is_ids(prompt):
            raise PydanticCustomError(
                "invalid_prompt",
                "holds {count} prompts, at most {most} go into one request",
                {"count": len(prompt), "most": MAX_CHOICES},
            )
        if (
            (isinstance(prompt, str) and prompt)
            or is_ids(prompt)
            or (listed and all(isinstance(one, str) and one for one in prompt))
            or (listed and all(is_ids(one) for one in prompt))
        ):
            return prompt
        raise PydanticCustomError("invalid_prompt", PROMPT_FORMS)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Every prompt, as texts or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class ChatMessage(BaseModel):
    """One message; content parts other than text are refused by name, fields that the template does not use dropped."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str

    @field_validator("role", mode="before")
    @classmethod
    def _check_role(cls, role: Any) -> Any:
        if role in ("tool", "function"):
            raise PydanticCustomError("unsupported_role", "tool messages are not supported by this server")
        return role

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        texts = []
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise PydanticCustomError(
                    "invalid_content", "must be a string or a list of parts {type: 'text', text: '…'}"
                )
            texts.append(part["text"])
        return "".join(texts)


class ChatBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def token_limit(self) -> int | None:
        """The limit on output tokens, under its new name or its old one."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def template_messages(self) -> list[dict[str, str]]:
        """What the chat template is given; a developer message is what older models call system."""
        return [
            {"role": "system" if one.role == "developer" else one.role, "content": one.content} for one in self.messages
        ]
