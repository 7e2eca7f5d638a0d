"""Masks the literals of a statement, which may be passwords or personal data, and its comments. Pure.

A statement comes from pg_stat_activity, whose text may be cut anywhere (track_activity_query_size), and may be several
statements. It is read as PostgreSQL's lexer reads it. What is not complete is masked to the end. So is everything after
a quote whose meaning depends on standard_conforming_strings of the session, which is unknown here: `'\\'`.
Source: https://www.postgresql.org/docs/current/sql-syntax-lexical.html
"""

import re
from collections.abc import Iterator
from typing import Final

MASK: Final = "?"

# As in PostgreSQL's lexer, each character beyond ASCII is part of a name.
_TOKEN: Final = re.compile(
    r"""
    (?P<comment> --[^\n\r]* )
  | (?P<block> /\* )
  | (?P<dollar> \$ (?: [A-Za-z_\x80-\U0010ffff] [0-9A-Za-z_\x80-\U0010ffff]* )? \$ )
  | (?P<parameter> \$[0-9]+ )
  | (?P<prefix> (?: [bBeExXnN] | [uU]& )? ) '
  | (?P<name> [A-Za-z_\x80-\U0010ffff] [0-9A-Za-z_$\x80-\U0010ffff]* | "(?:[^"]|"")*(?:"|\Z) )
  | (?P<number> \.?[0-9] (?: [eE][+-]?[0-9] | [0-9A-Za-z_.\x80-\U0010ffff] )* )
  | (?P<other> [\s,();=<>]+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK_EDGE: Final = re.compile(r"/\*|\*/")
_PLAIN_STRING: Final = re.compile(r"(?:[^']+|'')*(?P<end>')?")
_ESCAPED_STRING: Final = re.compile(r"(?:[^'\\]+|''|\\.)*(?P<end>')?", re.DOTALL)
_ODD_BACKSLASHES: Final = re.compile(r"(?<!\\)(?:\\\\)*\\'")


def mask_literals(statement: str) -> str:
    """Return a statement with `?` in place of each number and of what is between quotes, and without its comments."""
    return "".join(_masked(statement))


def _masked(statement: str) -> Iterator[str]:
    position = 0
    # A string that continues one of the form E'...', after white space with a newline, is of this form, too.
    escapes = has_newline = False
    while match := _TOKEN.match(statement, position):
        kind, text = match.lastgroup, match[0]
        position = match.end()
        match kind:
            case "comment":
                yield "--" + MASK
            case "block":
                yield f"/*{MASK}*/"
                position = _end_of_comment(statement, position)
            case "dollar":
                yield f"$${MASK}$$"
                end = statement.find(text, position)
                position = end + len(text) if end >= 0 else len(statement)
            case "prefix":
                prefix = match["prefix"]
                escapes = prefix in ("e", "E") or (escapes and has_newline and not prefix)
                has_newline = False
                yield f"{prefix}'{MASK}'"
                position = _end_of_string(statement, position, escapes=escapes)
            case "number":
                yield MASK
            case _:
                yield text
        if text.isspace():
            has_newline = has_newline or "\n" in text or "\r" in text
        elif kind not in ("prefix", "comment"):
            escapes = False


def _end_of_comment(statement: str, position: int) -> int:
    """Return the end of a comment that begins before `position`; comments can be nested."""
    depth = 1
    while depth:
        edge = _BLOCK_EDGE.search(statement, position)
        if edge is None:
            return len(statement)
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position


def _end_of_string(statement: str, position: int, *, escapes: bool) -> int:
    """Return the end of a string whose content begins at `position`."""
    found = (_ESCAPED_STRING if escapes else _PLAIN_STRING).match(statement, position)
    if found is None or not found["end"]:
        return len(statement)
    if not escapes and _ODD_BACKSLASHES.search(statement, position, found.end()):
        return len(statement)  # With standard_conforming_strings = off it does not end where it seems to.
    return found.end()
