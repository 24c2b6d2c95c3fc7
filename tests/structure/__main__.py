"""Print the shape of this checkout, beside that of a revision:  python -m tests.structure [REVISION]"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.structure.measure import PRODUCT, TOPS, files_of, pairs, shape
from tests.structure.words import COINED, count_words


def show(root: Path, title: str) -> None:
    print(f"== {title}")
    for tops in [(top,) for top in TOPS] + [PRODUCT]:
        if not any((root / top).is_dir() for top in tops):
            continue
        about = shape(root, tops)
        print(f"{'+'.join(tops):44} {about.files:4} files {about.lines:6} lines, median file {about.median_lines:g}")
        for what, listed in (("files in", about.crowded), ("lines of", about.long)):
            for name, count in listed.items() if len(tops) == 1 else ():
                print(f"    {count} {what} {name}")
    for tops in (PRODUCT, TOPS):
        equal, alike = pairs(root, tops), pairs(root, tops, alike=True)
        print(f"written twice in {'+'.join(tops)}: {len(equal)} pairs of equal lines, {len(alike)} pairs of lines of equal shape")
    counts = count_words(root, files_of(root, PRODUCT))
    for pattern, count in counts.items():
        print(f"    {count:4} {pattern}  ->  {COINED[pattern]}")


def main(revision: str | None) -> None:
    here = Path(__file__).resolve().parents[2]
    if revision is not None:
        with tempfile.TemporaryDirectory() as folder:
            packed = subprocess.run(["git", "archive", revision], cwd=here, capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
            show(Path(folder), revision)
    show(here, "this checkout")


main(sys.argv[1] if len(sys.argv) > 1 else None)
