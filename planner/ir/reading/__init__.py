"""Reads files that anybody may have written: text, JSON, TOML and CSV, each within limits, each refused in one sentence.

The limits are met before anything is built from a file: its size, its levels of nesting, the size of its numbers, its encoding.
``decode`` makes typed values of JSON data.
"""

from planner.ir.reading.files import read_bytes, read_csv, read_json, read_text, read_toml
from planner.ir.reading.parsing import parse_csv
from planner.ir.reading.values import decode, field_types

__all__ = ["decode", "field_types", "parse_csv", "read_bytes", "read_csv", "read_json", "read_text", "read_toml"]
