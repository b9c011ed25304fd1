"""Scenario files: which requests arrive how, what each class is promised, which faults strike."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from superinfer.contracts.errors import UsageError
from superinfer.contracts.yaml_reader import read_settings

BUILT_IN = (
    "mixed",
    "jitter",
    "fault",
    "precision",
    "cluster-mixed",
    "cluster-jitter",
    "cluster-fault",
    "cluster-unequal",
)
LENGTH_KINDS = ("constant", "uniform", "lognormal", "trace")

# Far beyond what anybody measures, and far below what overflows or never ends: a slip becomes one clear line.
MAX_TOKENS = 10_000_000
MAX_REQUESTS = 10_000_000
MAX_DOMAINS = 4096
MIN_LOAD, MAX_LOAD = 0.01, 100.0
MIN_RATE_RPS, MAX_RATE_RPS = 1e-4, 1e6
MIN_CV, MAX_CV = 0.01, 100.0
MAX_SIGMA = 10.0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Constant(_Strict):
    """Always the same length."""

    kind: Literal["constant"] = "constant"
    value: int = Field(ge=1, le=MAX_TOKENS, description="tokens")


class Uniform(_Strict):
    """Every length from low to high is equally likely."""

    kind: Literal["uniform"]
    low: int = Field(ge=1, le=MAX_TOKENS, description="shortest, tokens")
    high: int = Field(ge=1, le=MAX_TOKENS, description="longest, tokens")

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.high < self.low:
            raise ValueError(f"high {self.high} is below low {self.low}")
        return self


class Lognormal(_Strict):
    """Log-normal lengths, cut off at low and high."""

    kind: Literal["lognormal"]
    median: float = Field(gt=0, le=MAX_TOKENS, description="median before clipping, tokens")
    sigma: float = Field(ge=0, le=MAX_SIGMA, description="standard deviation of the logarithm")
    low: int = Field(ge=1, le=MAX_TOKENS, description="shortest, tokens")
    high: int = Field(ge=1, le=MAX_TOKENS, description="longest, tokens")

    @model_validator(mode="after")
    def _ordered(self) -> Lognormal:
        if self.high < self.low:
            raise ValueError(f"high {self.high} is below low {self.low}")
        return self


class FromTrace(_Strict):
    """The lengths of the trace that the arrivals come from, in its order, cut off at low and high."""

    kind: Literal["trace"]
    low: int = Field(default=1, ge=1, le=MAX_TOKENS, description="shortest, tokens")
    high: int = Field(default=1_000_000, ge=1, le=MAX_TOKENS, description="longest, tokens")

    @model_validator(mode="after")
    def _ordered(self) -> FromTrace:
        if self.high < self.low:
            raise ValueError(f"high {self.high} is below low {self.low}")
        return self


def _number_is_constant(value: Any) -> Any:
    return (
        {"kind": "constant", "value": value}
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else value
    )


Lengths = Annotated[
    Annotated[Constant | Uniform | Lognormal | FromTrace, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant),
]


class Slo(_Strict):
    """Bounds of a class, each either in milliseconds or as a multiple of the class's own unloaded time."""

    slo_scale: float | None = Field(default=None, gt=0, description="end-to-end bound ÷ unloaded end-to-end time")
    ttft_scale: float | None = Field(default=None, gt=0, description="first-token bound ÷ unloaded time to first token")
    tpot_scale: float | None = Field(default=None, gt=0, description="per-token bound ÷ unloaded time per output token")
    latency_ms: float | None = Field(default=None, gt=0, description="end-to-end bound")
    ttft_ms: float | None = Field(default=None, gt=0, description="bound on the time to first token")
    tpot_ms: float | None = Field(default=None, gt=0, description="bound on the mean time per output token")
    percentile: float = Field(default=0.99, gt=0, lt=1, description="share of requests that the bounds are promised to")

    @model_validator(mode="after")
    def _one_form_each(self) -> Slo:
        pairs = (("slo_scale", "latency_ms"), ("ttft_scale", "ttft_ms"), ("tpot_scale", "tpot_ms"))
        for scale, absolute in pairs:
            if getattr(self, scale) is not None and getattr(self, absolute) is not None:
                raise ValueError(f"give {scale} or {absolute}, not both")
        return self


class RequestClass(_Strict):
    """One service's share of the requests. Without `slo` it is best effort."""

    service_id: str = Field(pattern=r"^[a-z0-9-]+$", description="[a-z0-9-]+, one class each")
    share: float = Field(gt=0, le=1e9, description="weight among all classes")
    prompt_tokens: Lengths
    output_tokens: Lengths
    slo: Slo | None = None
    priority: float = Field(default=1.0, gt=0, description="for policies that rank by priority; higher goes first")
    precision_loss_allowed: bool = Field(default=False, description="may run on domains of a lower precision")


class Arrival(_Strict):
    """The arrival process; `cv` is the coefficient of variation of the gaps of `gamma` (1 is Poisson).

    `trace` takes arrivals from `file` (formats: `superinfer.cli.bench.trace`; relative to the scenario file), from its
    start again where more requests are asked for, stretched to the rate asked for.
    """

    process: Literal["poisson", "gamma", "constant", "trace"] = "poisson"
    cv: float | None = Field(default=None, ge=MIN_CV, le=MAX_CV)
    file: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _cv_belongs_to_gamma(self) -> Arrival:
        if (self.process == "gamma") != (self.cv is not None):
            raise ValueError("cv goes with process: gamma, and gamma needs it")
        if (self.process == "trace") != (self.file is not None):
            raise ValueError("file goes with process: trace, and trace needs it")
        return self


class Fault(_Strict):
    """One injected fault: `at` is a share of the sending time, `at_s` seconds from its start."""

    kind: Literal["kill"] = "kill"
    domain: int = Field(0, ge=0, description="number of the domain whose worker is killed")
    at: float | None = Field(default=None, ge=0, le=1)
    at_s: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_time(self) -> Fault:
        if (self.at is None) == (self.at_s is None):
            raise ValueError("give one of at (share of the run) and at_s (seconds)")
        return self


class Scenario(_Strict):
    """A whole scenario file. Give `load` (offered rate ÷ capacity of the mix) or `rate_rps`; a trace may do without
    either, and then comes at its own rate.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    description: str = ""
    classes: list[RequestClass] = Field(min_length=1)
    arrival: Arrival = Arrival()
    load: float | None = Field(default=None, ge=MIN_LOAD, le=MAX_LOAD)
    rate_rps: float | None = Field(default=None, ge=MIN_RATE_RPS, le=MAX_RATE_RPS)
    requests: int = Field(ge=1, le=MAX_REQUESTS)
    domains: int = Field(default=1, ge=1, le=MAX_DOMAINS)
    faults: list[Fault] = []
    warmup: int = Field(default=4, ge=0, le=MAX_REQUESTS, description="requests sent before the load and not counted")

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        given = (self.load is not None) + (self.rate_rps is not None)
        if given > 1 or (given == 0 and self.arrival.process != "trace"):
            raise ValueError("give one of load (share of capacity) and rate_rps")
        lengths = [each for item in self.classes for each in (item.prompt_tokens, item.output_tokens)]
        if self.arrival.process != "trace" and any(isinstance(each, FromTrace) for each in lengths):
            raise ValueError("classes: lengths of kind: trace need arrival: {process: trace, file: ...}")
        names = [request_class.service_id for request_class in self.classes]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"classes: service_id {sorted(twice)[0]!r} is used twice")
        for fault in self.faults:
            if fault.domain >= self.domains:
                raise ValueError(f"faults: domain {fault.domain} does not exist; domains is {self.domains}")
        return self


def load_scenario(name_or_path: str) -> Scenario:
    """A built-in scenario by name, or a YAML file; UsageError names the file, the key and what is accepted."""
    if name_or_path in BUILT_IN:
        text = resources.files("superinfer.cli.bench").joinpath(f"scenarios/{name_or_path}.yaml").read_text("utf-8")
        return parse_scenario(text, f"{name_or_path}.yaml")
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(BUILT_IN)
        raise UsageError(f"scenario {name_or_path!r}: no such file; give {known} or the path of a YAML file")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"scenario {path}: cannot be read ({error})") from None
    return parse_scenario(text, str(path), folder=path.parent)


def parse_scenario(text: str, source: str, *, folder: Path | None = None) -> Scenario:
    """Parse scenario YAML; `source` is how errors call it, `folder` what a trace's file is relative to."""
    data = read_settings(text, f"scenario {source}")
    if not isinstance(data, dict):
        raise UsageError(f"scenario {source}: a mapping with name, classes, requests and load is needed")
    arrival = data.get("arrival")
    if folder is not None and isinstance(arrival, dict) and isinstance(arrival.get("file"), str):
        data["arrival"] = {**arrival, "file": str(folder / Path(arrival["file"]).expanduser())}
    return _validate(data, source)


def override(scenario: Scenario, changes: dict[str, Any]) -> Scenario:
    """The scenario with some top-level fields replaced and everything checked again (for command-line flags)."""
    return _validate(scenario.model_dump(exclude_none=True) | changes, f"{scenario.name} with these flags")


def _validate(data: dict[str, Any], source: str) -> Scenario:
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"scenario {source}: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    """One line from pydantic's list: the key's path, what is wrong, the value. A misspelt key comes first."""
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda candidate: candidate["type"] != "extra_forbidden")
    location = [part for part in problem["loc"] if part not in LENGTH_KINDS]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    value = problem["input"]
    shown = f" (got {value!r})" if isinstance(value, (str, int, float)) else ""
    match problem["type"]:
        case "extra_forbidden":
            message, shown = f"unknown key; accepted: {', '.join(_accepted_keys(location))}", ""
        case "missing":
            message = "is required"
        case "union_tag_not_found" | "union_tag_invalid" | "model_attributes_type":
            message = f"a whole number is needed, or a mapping with kind: {', '.join(LENGTH_KINDS)}"
        case _:
            message = problem["msg"].removeprefix("Value error, ")
    return f"{path}: {message}{shown}{more}" if path else f"{message}{more}"


def _accepted_keys(location: list[int | str]) -> list[str]:
    """The fields of the innermost model that holds the last part of a location."""
    sections: dict[str, type[BaseModel]] = {
        "classes": RequestClass,
        "slo": Slo,
        "arrival": Arrival,
        "faults": Fault,
    }
    lengths = {"prompt_tokens", "output_tokens"}
    for part in reversed(location[:-1]):
        if part in lengths:
            return ["kind", "value", "low", "high", "median", "sigma"]
        if isinstance(part, str) and part in sections:
            return list(sections[part].model_fields)
    return list(Scenario.model_fields)
