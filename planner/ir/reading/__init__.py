"""Reads files that anybody may have written: text, JSON, TOML and CSV, each within limits, each refused in one sentence.

The limits are met before anything is built from a file: its size, its levels of nesting, the size of its numbers, its encoding.
"""

from planner.ir.reading.files import read_bytes, read_csv, read_json, read_text, read_toml
from planner.ir.reading.parsing import parse_csv

__all__ = ["parse_csv", "read_bytes", "read_csv", "read_json", "read_text", "read_toml"]
