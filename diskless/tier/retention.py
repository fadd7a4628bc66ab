"""Which manifests are kept: the rules are those of all that is thinned with age."""

from diskless.retention import POINTS_MAX, Rule, parse, thin

__all__ = ["POINTS_MAX", "Rule", "parse", "thin"]
