"""Parsers of verbs, and how what was typed becomes named arguments and back."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from regista.verbs.arguments import Usage
from regista.verbs.registry import VERBS, Verb

__all__ = ["VerbParser", "add_verbs", "argv_of", "typed_of", "verb_parser"]


class VerbParser(argparse.ArgumentParser):
    """Refuses as every verb does: one message, no table of options in front of it."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; '{self.prog} --help' lists what can be given")


def add_verbs(parser: argparse.ArgumentParser, verbs: Iterable[Verb]) -> None:
    """The sub-parsers of verbs."""
    subs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")
    for verb in verbs:
        description = verb.help[0].upper() + verb.help[1:] + "."
        _add(verb, subs.add_parser(verb.name, help=verb.help, description=description, allow_abbrev=False))


def verb_parser(name: str) -> VerbParser:
    """The parser of one verb's own arguments."""
    parser = VerbParser(prog=f"regista {name}", allow_abbrev=False)
    _add(next(verb for verb in VERBS if verb.name == name), parser)
    return parser


def _add(verb: Verb, parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--full", action="store_true", help="print all rows of all tables (default: one screen, cut with a count)")
    verb.add_arguments(parser)


def typed_of(name: str, argv: Sequence[str]) -> dict[str, str | bool | list[str]]:
    """Named arguments as they were typed, without those that were left out.

    Raises:
        Usage: the verb does not understand them.
    """
    verb_parser(name).parse_args(argv)
    parser = verb_parser(name)
    for action in parser._actions:
        action.default, action.type = argparse.SUPPRESS, None
        action.choices = None
    return {key: value for key, value in vars(parser.parse_args(argv)).items() if value is not None}


def argv_of(name: str, arguments: Mapping[str, str | bool | Sequence[str]]) -> list[str]:
    """What would be typed for named arguments.

    Raises:
        Usage: the verb has no such argument, or takes no value for it.
    """
    actions = {action.dest: action for action in verb_parser(name)._actions if action.dest != "help"}
    if unknown := sorted(set(arguments) - set(actions)):
        raise Usage(f"'{name}' has no argument {unknown[0]!r}; it has {', '.join(actions)}")
    options, positionals = [], []
    for dest, action in actions.items():
        value = arguments.get(dest)
        if value is None or value is False:
            continue
        texts = [value] if isinstance(value, str) else [] if value is True else list(value)
        if not action.option_strings:
            positionals += texts
        elif action.nargs == 0:
            if value is not True:
                raise Usage(f"{dest} of '{name}' is a flag: true or false is needed, not {str(value)[:40]!r}")
            options.append(action.option_strings[-1])
        elif value is True:
            raise Usage(f"{dest} of '{name}' needs a value, not true")
        else:
            options += [f"{action.option_strings[-1]}={text}" for text in texts]
    return [*options, "--", *positionals] if positionals else options
