"""Parsers of verbs, and how what was typed becomes named arguments and back."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from regista.verbs.arguments import Usage
from regista.verbs.registry import VERBS, Verb

__all__ = ["VerbParser", "add_verbs", "arguments_of", "argv_of", "typed_of", "verb_parser"]


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


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All arguments of a verb, those of its sub-commands included, each name once."""
    found: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                found |= {one.dest: one for one in arguments_of(inner) if one.dest not in found}
        if action.dest != "help":
            found[action.dest] = action
    return list(found.values())


def typed_of(name: str, argv: Sequence[str]) -> dict[str, str | bool | list[str]]:
    """Named arguments as they were typed, without those that were left out.

    Raises:
        Usage: the verb does not understand them.
    """
    verb_parser(name).parse_args(argv)
    parser = verb_parser(name)
    _strip(parser)
    return {key: value for key, value in vars(parser.parse_args(argv)).items() if value is not None}


def _strip(parser: argparse.ArgumentParser) -> None:
    """Texts stay texts, and what was left out stays out."""
    for action in parser._actions:
        action.default, action.type = argparse.SUPPRESS, None
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _strip(inner)
        else:
            action.choices = None


def argv_of(name: str, arguments: Mapping[str, str | bool | Sequence[str]]) -> list[str]:
    """What would be typed for named arguments.

    Raises:
        Usage: the verb has no such argument, or takes no value for it.
    """
    known = [action.dest for action in arguments_of(verb_parser(name))]
    if unknown := sorted(set(arguments) - set(known)):
        raise Usage(f"'{name}' has no argument {unknown[0]!r}; it has {', '.join(known)}")
    return _argv(name, verb_parser(name), arguments)


def _argv(name: str, parser: argparse.ArgumentParser, arguments: Mapping[str, str | bool | Sequence[str]]) -> list[str]:
    options, positionals, rest = [], [], []
    for action in parser._actions:
        dest, value = action.dest, arguments.get(action.dest)
        if value is None or value is False or dest == "help":
            continue
        texts = [value] if isinstance(value, str) else [] if value is True else list(value)
        if isinstance(action, argparse._SubParsersAction):
            if texts[:1] and texts[0] in action.choices:
                inner = action.choices[texts[0]]
                rest = [texts[0], *_argv(name, inner, {key: one for key, one in arguments.items() if key not in ("json", "full")})]
            else:
                rest = texts
        elif not action.option_strings:
            positionals += texts
        elif action.nargs == 0:
            if value is not True:
                raise Usage(f"{dest} of '{name}' is a flag: true or false is needed, not {str(value)[:40]!r}")
            options.append(action.option_strings[-1])
        elif value is True:
            raise Usage(f"{dest} of '{name}' needs a value, not true")
        else:
            options += [f"{action.option_strings[-1]}={text}" for text in texts]
    return [*options, *rest, *(["--", *positionals] if positionals else [])]
