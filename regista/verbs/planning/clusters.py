"""The verb 'clusters': the clusters that --cluster knows by name."""

from __future__ import annotations

import argparse

from regista.clusters import clusters_json, named_clusters, show_clusters
from regista.verbs.screen import Json, show

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def perform(args: argparse.Namespace) -> Json:
    clusters = named_clusters()
    show(args, show_clusters(clusters, sources=args.full))
    return clusters_json(clusters)
