"""Errors a user can cause or mend. The command line prints the message alone and exits with `exit_code`."""

from __future__ import annotations


class SuperInferError(Exception):
    """Base of every error that is reported as one clear line; the message names what, the value, what is accepted."""

    exit_code = 1


class UsageError(SuperInferError):
    """A flag, scenario or other argument is wrong."""

    exit_code = 2


class ModelError(SuperInferError):
    """A model cannot be found, read or supported."""

    exit_code = 3


class ContractError(SuperInferError):
    """A contract is malformed or contradicts another."""

    exit_code = 4


class ContractConflictError(ContractError):
    """The same id is registered twice, or parent and child contradict each other."""


class ResourceError(SuperInferError):
    """The machine lacks what was asked for: memory, cores, a privilege."""

    exit_code = 5


class AddressError(SuperInferError):
    """A host or port cannot be listened on."""

    exit_code = 6


class EngineError(SuperInferError):
    """The engine or its workers failed to start or died for good."""

    exit_code = 7


class UnknownContractError(ContractError):
    """A contract id that nobody has registered."""
