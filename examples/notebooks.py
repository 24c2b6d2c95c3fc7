"""Performs the notebooks of this folder and keeps what their cells show.

    python -m examples.notebooks                   all of them, written in place
    python -m examples.notebooks advise_megatron   one of them

Code cells are executed in order in one namespace, without IPython: nothing else needs to be installed, so magics and ``!commands`` are no part of
these notebooks.  A cell shows what it prints and the value of its last expression, in the forms that Jupyter asks a value for.
"""

from __future__ import annotations

import argparse
import ast
import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

__all__ = ["HERE", "NAMES", "executed"]

HERE = Path(__file__).parent
NAMES = ("plan_and_simulate", "predict_and_run", "advise_megatron")

Notebook = dict[str, Any]


def executed(notebook: Notebook) -> Notebook:
    """The notebook with the outputs of its code cells.

    Raises:
        whatever a cell raises.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = cell | {"execution_count": count, "outputs": _outputs("".join(cell["source"]), namespace, count)}
        cells.append(cell)
    return notebook | {"cells": cells}


def _outputs(source: str, namespace: dict[str, object], count: int) -> list[dict[str, object]]:
    body = ast.parse(source).body
    last = body.pop().value if body and isinstance(body[-1], ast.Expr) else None
    printed, shown = StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"<cell {count}>", "exec"), namespace)
        if last is not None:
            shown = eval(compile(ast.Expression(last), f"<cell {count}>", "eval"), namespace)
    outputs: list[dict[str, object]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if shown is not None:
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": _forms(shown)})
    return outputs


def _forms(value: object) -> Mapping[str, object]:
    """MIME type -> what a value shows itself as; long texts stand for themselves in HTML or as a picture."""
    html, png = (getattr(value, name, lambda: None)() for name in ("_repr_html_", "_repr_png_"))
    forms: dict[str, object] = {}
    if html is not None:
        forms["text/html"] = _lines(html)
    if png is not None:
        forms["image/png"] = base64.b64encode(png).decode()
    return forms | {"text/plain": _lines(f"<{type(value).__name__}>" if html is not None else repr(value))}


def _lines(text: str) -> Sequence[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Performs the notebooks of this folder and keeps what their cells show.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ({', '.join(NAMES)}; default: all)")
    for name in parser.parse_args().names or NAMES:
        file = HERE / f"{name}.ipynb"
        file.write_text(json.dumps(executed(json.loads(file.read_text())), indent=1, ensure_ascii=False) + "\n")
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
