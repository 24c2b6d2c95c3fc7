"""YAML -> data, within limits: size, nesting, references and keys that stand twice."""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_text
from planner.ir.reading.parsing import MAX_DEPTH, check_data

__all__ = ["parse_yaml", "read_yaml"]

MAX_BYTES = 2**20
"""Recipes have some 20 kB."""
MAX_REFERENCES = 16
"""Nine references to nine references to ... make a file of a few lines as large as memory; sixteen in all make it 360 times as large at most."""
MAX_VALUES = 2**17


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader, which takes the last of two equal keys; this one refuses them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.YAMLError(f"{', '.join(twice)} stands twice in one table")
        made: dict[object, object] = super().construct_mapping(node, deep=deep)
        return made


def parse_yaml(text: str) -> object:
    """The data of a YAML text; no object of Python's is ever made from it.

    Raises:
        InvalidFile: not YAML, too many references, nested too deep, a key twice, or a tag for an object.
    """
    try:
        references = depth = 0
        for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            references += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if references > MAX_REFERENCES:
                raise InvalidFile(f"more than {MAX_REFERENCES} references (*name); write the values out")
            if depth > MAX_DEPTH or number > MAX_VALUES:
                raise InvalidFile(f"nested deeper than {MAX_DEPTH} levels, or more than {MAX_VALUES} values; a job has some hundred lines")
        data: object = yaml.load(text, Loader=_Loader)
        check_data(data, integers=True)
        return data
    except InvalidFile:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidFile(f"not a readable YAML file ({' '.join(str(error).split())[:200]})") from None


def read_yaml(path: str | Path, way_out: str) -> object:
    """The data of a YAML file.

    Raises:
        InvalidFile: see read_text and parse_yaml.
    """
    text = read_text(path, way_out, max_bytes=MAX_BYTES)
    try:
        return parse_yaml(text)
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}; {way_out}") from None
