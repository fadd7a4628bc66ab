"""`diskless doctor`: is this machine, and is a cluster, as it should be.

`machine` looks at what `diskless up` and Spark need here, `cluster` at a cluster that is known
here. Each check gives one `Finding`. Nothing is changed, started or compiled by looking.
"""

from diskless.doctor.findings import Finding, Level

__all__ = ["Finding", "Level"]
