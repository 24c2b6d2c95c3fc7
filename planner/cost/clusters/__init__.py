"""Clusters of the papers and of the catalogues, as data: one TOML per kind of node, with the origin of every number.

``p3.16xlarge`` is the cluster as its file says, ``p3.16xlarge:4`` is four nodes of it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

from planner.ir.cluster import Cluster, load_cluster
from planner.ir.errors import InvalidCluster

__all__ = ["preset", "preset_names"]


def preset_names() -> tuple[str, ...]:
    """The names of the files here, sorted."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in resources.files(__name__).iterdir() if f.name.endswith(".toml")))


def preset(text: str) -> Cluster:
    """NAME or NAME:NODES.

    Raises:
        InvalidCluster: no preset has that name (the message lists them), or NODES is not a number.
    """
    name, colon, nodes = text.partition(":")
    names = preset_names()
    if name not in names:
        raise InvalidCluster(
            f"cluster {text!r}: no preset has that name; presets are {', '.join(names)} (NAME:NODES for more nodes); "
            f"or give local:N, or the path of a TOML file"
        )
    with resources.as_file(resources.files(__name__).joinpath(f"{name}.toml")) as path:
        cluster = load_cluster(path)
    if not colon:
        return cluster
    if not re.fullmatch(r"[0-9]{1,7}", nodes):
        raise InvalidCluster(f"cluster {text!r}: {nodes!r} is not a number of nodes; write for example {name}:4")
    return replace(cluster, name=text, num_nodes=int(nodes))
