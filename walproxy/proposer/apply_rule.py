"""Which standbys must have replayed a commit before `synchronous_commit = remote_apply` returns.

The rule is written as in PostgreSQL's synchronous_standby_names, as far as that makes sense for replaying:

    (nothing)              no standby is designated: remote_apply behaves like on
    a, b                   all that are named
    ANY 1 (a, b)           any one of those named
    ANY 2 (*), ANY 2       any two of those that stream

A name is an application_name, compared without regard to case as PostgreSQL does; in double quotes it may contain any
character. A name counts once: of two connections with the same name, the lower position.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from safekeeper.base.lsn import Lsn

_TOKEN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s,()"*]+)|([,()*]))')


@dataclass(frozen=True, slots=True)
class ApplyRule:
    """Required number of standbys, and the candidates.

    Attributes:
        text: the rule as it was written.
        count: how many must have replayed; 0: no standby is designated.
        names: the standbys whose positions count, folded; empty: all standbys.
    """

    text: str = ""
    count: int = 0
    names: tuple[str, ...] = ()

    def designates(self, name: str) -> bool:
        """Return whether a standby of this name counts."""
        return self.count > 0 and (not self.names or fold_name(name) in self.names)

    def applied_lsn(self, positions: Mapping[str, Lsn]) -> Lsn:
        """Return the position up to which the rule is met; 0 if too few standbys have reported.

        Args:
            positions: apply positions by folded name; of at least one standby that counts, if the rule has any.
        """
        counted = [positions.get(name, 0) for name in self.names] if self.names else list(positions.values())
        return sorted(counted, reverse=True)[self.count - 1] if len(counted) >= self.count else 0


@lru_cache(maxsize=4096)
def fold_name(name: str) -> str:
    """Return a name in the form that is compared: PostgreSQL folds ASCII letters only."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def parse_apply_rule(written: Any) -> ApplyRule:
    """Parse "", NAME, ... or ANY COUNT (NAME, ...): the standbys that remote_apply waits for.

    Raises:
        ValueError: the syntax is wrong, or the rule can never be met.
    """
    if not isinstance(written, str):
        raise ValueError(f"{written!r} is not a list of standbys: write NAME, ... or ANY COUNT (NAME, ...)")
    tokens = _tokens(written)
    text = written.strip()
    if not tokens:
        return ApplyRule()
    if _is_word(tokens[0], "first") and len(tokens) > 1 and _is_number(tokens[1]):
        raise ValueError(f"{text!r}: FIRST is not supported, only ANY COUNT (NAME, ...)")
    if not (_is_word(tokens[0], "any") and len(tokens) > 1 and _is_number(tokens[1])):
        names = _names(tokens, text)
        if not names:
            raise ValueError(f"{text!r} lacks the required number: write ANY 1 (*)")
        return ApplyRule(text, len(names), names)
    count, rest = int(tokens[1][1]), tokens[2:]
    if rest and (rest[0] != ("mark", "(") or rest[-1] != ("mark", ")")):
        raise ValueError(f"{text!r}: write the names after ANY {count} in parentheses, for example ANY 1 (a, b)")
    names = _names(rest[1:-1], text) if rest else ()
    if count < 1 or (names and count > len(names)):
        possible = f"1 to {len(names)}" if names else "1 or more"
        raise ValueError(f"{text!r} can never be met: require {possible} of these standbys, or leave the rule empty")
    return ApplyRule(text, count, names)


def _tokens(written: str) -> list[tuple[str, str]]:
    """Return (kind, text) of each piece: a `name` in quotes, a `word`, or a `mark`."""
    tokens, position = [], 0
    end = len(written.rstrip())
    while position < end:
        match = _TOKEN.match(written, position)
        if match is None:
            raise ValueError(f"{written.strip()!r} has a syntax error at {written[position:end].strip()!r}")
        quoted, word, mark = match.groups()
        if quoted is not None:
            tokens.append(("name", quoted.replace('""', '"')))
        else:
            tokens.append(("word", word) if word is not None else ("mark", mark))
        position = match.end()
    return tokens


def _names(tokens: list[tuple[str, str]], text: str) -> tuple[str, ...]:
    """Return the folded names of a list with commas; () for `*`."""
    if tokens == [("mark", "*")]:
        return ()
    names = [fold_name(name) for kind, name in tokens[::2] if kind != "mark"]
    if len(names) != len(tokens[::2]) or len(tokens) % 2 == 0 or any(t != ("mark", ",") for t in tokens[1::2]):
        raise ValueError(f"{text!r} has a syntax error: write NAME, ... or ANY COUNT (NAME, ...)")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{text!r} lists {twice} twice")
    return tuple(names)


def _is_word(token: tuple[str, str], word: str) -> bool:
    return token[0] == "word" and token[1].lower() == word


def _is_number(token: tuple[str, str]) -> bool:
    return token[0] == "word" and token[1].isascii() and token[1].isdecimal()
