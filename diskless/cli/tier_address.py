"""Which tier a verb looks at: the one that was named, else that of a cluster's descriptor."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import click

from diskless.cli.verb import Context
from diskless.config import ClusterSettings, TierSettings
from diskless.errors import BadRequest

F = TypeVar("F", bound=Callable[..., Any])


def address(function: F) -> F:
    """The options that a tier is opened with where no descriptor names them."""
    for option in (
        click.option("--tier-credentials", "credentials", metavar="FILE", default="",
                     help="NAME=VALUE lines in the store's own variables."),
        click.option("--tier-key", "key", metavar="FILE", default="",
                     help="The key that the tier is encrypted with."),
        click.argument("uri", required=False, default="", metavar="[URI]"),
    ):  # fmt: skip
        function = option(function)
    return function


def which(context: Context, uri: str, key: str, credentials: str) -> TierSettings:
    """The tier that was named, else that of the cluster's descriptor. Raises BadRequest."""
    from diskless.client import descriptor

    if uri:
        return TierSettings(uri=uri, key=key, credentials=credentials)
    known = descriptor.load(context.cluster_name())
    settings = ClusterSettings.from_dict(known.settings)
    if not settings.tier:
        raise BadRequest(
            f"cluster {known.name!r} has no tier: name one (`diskless tier status URI`), or add "
            "one (`diskless up --tier URI`)"
        )
    tier = settings.tier_settings
    return dataclasses.replace(
        tier, key=key or tier.key, credentials=credentials or tier.credentials
    )
