"""Room for the files that an engine opens: sockets, pipes and KV pools, the more the more domains it has."""

from __future__ import annotations

import resource

from superinfer.contracts.errors import ResourceError

FILES = 64
FILES_PER_DOMAIN = 16
"""With room to spare; besides, each client's connection takes some."""


def allow_open_files(domains: int) -> None:
    """Let this process and those it starts open as many files as an engine of so many domains needs.

    The soft limit is raised where it is too low; ResourceError where the hard limit is.
    """
    needed = FILES + FILES_PER_DOMAIN * domains
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ResourceError(
            f"{domains} fault domains need about {needed} open files, and this process may have {hard}; "
            f"raise the limit (ulimit -n {needed}), or take fewer domains"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
