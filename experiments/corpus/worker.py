"""Performs cases for its parent: a line of JSON in, [LIBRARY/MODEL, [WAY, ...], PERFORMER], a row of JSON per way out, an empty line at the end."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from dataclasses import asdict


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no row
    from experiments.corpus.libraries import make_ready
    from experiments.corpus.models import CASES
    from experiments.corpus.perform import outcomes

    make_ready()

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cases = {case.key: case for case in CASES}
    for line in sys.stdin:
        key, ways, performer = json.loads(line)
        for row in outcomes(cases[key], ways, performer):
            print(json.dumps(asdict(row)), file=out, flush=True)
        print(file=out, flush=True)


if __name__ == "__main__":
    main()
