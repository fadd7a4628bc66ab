"""How many files a process may have open: every client's connection is one."""

import logging
import resource

log = logging.getLogger(__name__)


def files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_files_max() -> None:
    """As far as the system allows: it starts programs with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            log.warning("open files stay limited to %d: %s", soft, error)
