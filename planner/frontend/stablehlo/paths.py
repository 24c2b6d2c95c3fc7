"""Names of parameters from paths of a pytree, and the module to which each operation belongs.

    params['h'][0]['mlp']['kernel'].value      ->  h.0.mlp.kernel
    (params, opt_state)  state[0]['h'][0][..]  ->  the index that all parameters share is left out

StableHLO has no modules.  An operation that reads a parameter, through views, belongs to the parameter's module; one that reads none belongs
to what encloses the module of the last of its ancestors that did; one without such ancestors, to the module of its first reader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planner.frontend.stablehlo.listing import Listing, Operation

__all__ = ["module_paths", "names_of_paths", "root_of"]

_STEP = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[([^\]]*)\]|\.([A-Za-z_]\w*)")
_VIEWS = ("broadcast_in_dim", "reshape", "transpose", "convert", "slice")


def root_of(path: str) -> str:
    """The argument in which a path begins: ``params`` of ``params['h'][0]``."""
    return re.split(r"[\[.]", path, maxsplit=1)[0]


def _steps(path: str) -> list[str]:
    found = ["".join(groups) for groups in _STEP.findall(path)]
    return found[:-1] if len(found) > 1 and path.endswith(".value") else found


def names_of_paths(paths: Sequence[str], of: Sequence[str]) -> list[str]:
    """Dotted names of paths, all different.

    Args:
        of: the paths of the parameters; what they all begin with, up to a place in a tuple, is left out of every name that begins so.
    """
    steps = [_steps(path) for path in of]
    shared = 0
    while steps and all(len(each) > shared + 1 for each in steps) and len({each[shared] for each in steps}) == 1:
        shared += 1
    shared = max((place + 1 for place in range(shared) if steps[0][place].isdigit()), default=0)
    prefix = steps[0][:shared] if steps else []
    names = list[str]()
    for number, path in enumerate(paths):
        parts = _steps(path)
        parts = parts[shared:] if parts[:shared] == prefix else parts
        name = ".".join(re.sub(r"\W", "_", part) or "_" for part in parts) or f"p{number}"
        names.append(name if name not in names else f"{name}_{number}")
    return names


def module_paths(listing: Listing, parameters: Mapping[int, str]) -> dict[int, str]:
    """First result of each operation -> path of its module.

    Args:
        parameters: input -> name of the parameter.
    """
    viewed = {value: _parent(name) for value, name in parameters.items()}
    last: dict[int, tuple[int, str]] = {}
    path_of: dict[int, str] = {}
    for place, operation in enumerate(listing.operations):
        made = operation.results[0]
        own = [viewed[value] for value in operation.operands if value in viewed]
        before = max((last[value] for value in operation.operands if value in last), default=None)
        if own and not before and operation.name in _VIEWS:
            viewed[made] = path_of[made] = own[0]
        elif own:
            path_of[made], last[made] = own[-1], (place, own[-1])
        elif before is not None:
            path_of[made], last[made] = _parent(before[1]), before
    readers: dict[int, Operation] = {}
    for operation in reversed(listing.operations):
        made = operation.results[0]
        if made not in path_of and made in readers:
            path_of[made] = path_of.get(readers[made].results[0], "")
        for value in operation.operands:
            readers[value] = operation
    return path_of


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
