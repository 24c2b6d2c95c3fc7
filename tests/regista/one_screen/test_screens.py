"""What the verbs print: one screen each, on a small plan and on one for 1,024 devices, at 80 and 160 columns, as the committed files say.

``make screens`` (pytest's --update-screens) writes the files anew, and the screens that the README shows with them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regista.cli import _VERBS
from regista.verbs.fitting import LINES
from tests.regista.one_screen.asked import WIDTHS, Asked
from tests.regista.one_screen.table import MEASURED, OF_THE_MACHINE, REFUSED, ROWS, SCREENS

GOLDEN = Path(__file__).parent / "screens"
README = Path(__file__).parents[3] / "README.md"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(tmp_path_factory.mktemp("s"))


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-screens"))


def test_every_verb_has_a_row_with_a_small_and_a_large_screen_or_the_reason_why_not() -> None:
    assert list(ROWS) == [verb.name for verb in _VERBS]
    for verb, row in ROWS.items():
        assert row.small, verb
        assert row.large or row.note, verb
        assert len(SCREENS) == sum(len(other.screens) for other in ROWS.values())


def test_every_committed_screen_is_in_the_table() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}_{columns}.txt" for name in SCREENS for columns in WIDTHS}


def words(text: str) -> list[str]:
    """The words of a screen without its numbers and their units, in whatever lines they stand."""
    text = re.sub(r"\b[0-9a-f]{16}\b", "ID", text)  # a plan's, which the measured machine is part of
    numberless = re.sub(r"[-+~]?\d[\d.,]*( ?(%|[kKMGT]i?B|B|ns|us|ms|s)\b|%)?", "#", text)
    return re.findall(r"[A-Za-z][\w./-]*", numberless)


@pytest.mark.processes
@pytest.mark.representatives("clusters", "predict")
@pytest.mark.parametrize("name", SCREENS)
def test_every_verb_answers_on_one_screen(asked: Asked, name: str, update: bool) -> None:
    shown = asked(*SCREENS[name], code=2 if name in REFUSED else 0)
    assert shown.parts
    for columns in WIDTHS:
        assert shown.lines(columns) <= LINES
        golden = GOLDEN / f"{name}_{columns}.txt"
        if update:
            golden.write_text(shown.text(columns))
        if name not in OF_THE_MACHINE:
            compared = words if name in MEASURED else str
            assert compared(shown.text(columns)) == compared(golden.read_text())


def test_the_readme_shows_the_screens_as_they_are(update: bool) -> None:
    text = README.read_text()

    def block(found: re.Match[str]) -> str:
        screen_text = (GOLDEN / f"{found[1]}.txt").read_text()
        return f"<!-- screen {found[1]} -->\n```\n{screen_text}```\n<!-- end of screen -->"

    shown, blocks = re.subn(r"<!-- screen (\w+) -->\n.*?<!-- end of screen -->", block, text, flags=re.DOTALL)
    if update:
        README.write_text(shown)
    assert blocks == 4 and shown == README.read_text()
