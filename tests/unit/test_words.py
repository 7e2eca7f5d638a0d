"""Words that a reader of the PostgreSQL manual would stumble over are in no message, and not in code or documents.

Messages are what an operator reads: log lines, help, errors, pages. Their list is longer than that of other texts. What
is right in its place is in `RIGHT`, with its path.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The word, or the phrase, and what to write instead.
IN_ANY_TEXT = {
    r"\bwhoever\b": "name the component: each proxy that ...",
    r"\bwhom\b": "name the component",
    r"\bwhence\b": "from which",
    r"\b[Nn]obody\b": "no member, no session, no client",
    r"\b[Aa]nybody\b": "any client, any member",
    r"\banew\b": "again",
    r"\bany more\b": "no longer",
    r"\bin earnest\b": "in production",
    r"\bfor ever\b": "indefinitely",
    r"\ball the same\b": "nevertheless",
    r"\bin vain\b": "is blocked",
    r"(?<!for turn )\bin turns?\b": "alternately",
    r"\b[Dd]oors?\b": "listener",
    r"\b[Bb]eat(?:s|en|ing)\b": "stress-test",
    r"\bbears the loss\b": "tolerates the loss",
}
IN_MESSAGES = IN_ANY_TEXT | {
    r"\b(?:says?|said|saying)\b": "send, report, return, log",
    r"\b(?:tells?|told)\b": "send, report, log",
    r"\bhea(?:rs?|rd)\b": "receive",
    r"\b(?:speaks?|spoke)\b": "send, use",
    r"\bknows\b": "has",
    r"\bwants\b": "requests, needs",
    r"\blies\b": "is stored, is",
    r"\bbehind\b": "after",
    r"\bis no (?!longer\b)": "is not a",
    r"\bso (?:many|long)\b": "the limit, the timeout",
    r"\(S\d+\)": "the rule in words",
    r"\bdocs/\S+\.md\b": "what to do, or a command's --help: an installed package has no docs folder",
    r"pip install '?walproxy\b": "walproxy.installation.pip_install, which is right in a checkout, too",
}
# In names that code and tests define; parts of a name are separated by underscores.
IN_NAMES = re.compile(r"(?:^|_)(?:tells?|told|hears?|heard|overheard|unheard|speaks?|spoke)(?=_|$)")
# Where a word is right: in quotations of other programs, in what somebody else has named, in figures of speech of SQL.
RIGHT: dict[str, tuple[str, ...]] = {
    "docs/guide/costs.md": ("| nobody |",),  # the case's name in the table of walproxy bench
    "walproxy/lab/bench/crashes.py": ('"nobody"', "    nobody  "),  # the case's name in --json
    "walproxy/postgres/binaries.py": ('"nobody"',),  # the user
}

TESTS = sorted((ROOT / "tests").rglob("*.py"))
CODE = sorted(path for package in ("safekeeper", "walproxy") for path in (ROOT / package).rglob("*.py"))
DOCUMENTS = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def messages(source: str) -> Iterator[str]:
    """Yield the literals of several words that are no docstrings: what may be printed."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if is_text and " " in node.value:
            yield node.value


def defined_names(source: str) -> Iterator[str]:
    """Yield the names that a module defines: of functions, classes, parameters, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def found(text: str, words: dict[str, str], right: tuple[str, ...]) -> list[str]:
    """Return the words to avoid of a text, with what to write instead."""
    for phrase in right:
        text = text.replace(phrase, "")
    if not re.search("|".join(words), text):  # Three times as fast as one search a word.
        return []
    return [f"{match[0]!r}: {better}" for word, better in words.items() for match in re.finditer(word, text)]


def test_code_and_its_messages_avoid_them() -> None:
    wrong = {}
    for path in CODE:
        source, right = path.read_text(), RIGHT.get(name_of(path), ())
        in_source = found(source, IN_ANY_TEXT, right)
        wrong[name_of(path)] = in_source + found("\n".join(messages(source)), IN_MESSAGES, right)
    assert {name: words for name, words in wrong.items() if words} == {}


def test_documents_avoid_them() -> None:
    wrong = {name_of(path): found(path.read_text(), IN_ANY_TEXT, RIGHT.get(name_of(path), ())) for path in DOCUMENTS}
    assert {name: words for name, words in wrong.items() if words} == {}


def test_names_avoid_them() -> None:
    wrong = {}
    for path in [*CODE, *TESTS]:
        source = path.read_text()
        if re.search("tell|told|hear|spoke|speak", source):  # Parsing all of them takes much longer.
            wrong[name_of(path)] = sorted(set(filter(IN_NAMES.search, defined_names(source))))
    assert {name: words for name, words in wrong.items() if words} == {}


def test_they_are_found_where_they_are_and_what_is_right_is_left_alone() -> None:
    source = (
        '"""Nobody reads."""\n\ndef f():\n    """It says so."""\n    raise E(f"{x} says that it is no file (S2)")\n'
    )
    assert found(source, IN_ANY_TEXT, ()) == ["'Nobody': no member, no session, no client"]
    printed = "\n".join(messages(source))
    assert [line.split(":")[0] for line in found(printed, IN_MESSAGES, ())] == ["'says'", "'is no '", "'(S2)'"]
    assert found(printed, IN_MESSAGES, ("says that it is no file (S2)",)) == []
    defines = "def tell_x(unheard):\n    node.is_told = 1\n    teller, shear, file.read = file.tell(), 2, 3\n"
    assert list(filter(IN_NAMES.search, defined_names(defines))) == ["tell_x", "unheard", "is_told"]
    assert set(RIGHT) <= {name_of(path) for path in [*CODE, *DOCUMENTS]}
