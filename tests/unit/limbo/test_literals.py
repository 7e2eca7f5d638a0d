"""No literal of a statement remains, wherever it was cut; everything else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walproxy.limbo.literals import mask_literals

SECRET = "ζ"
# Pieces of literals' content that could end a literal too early, or too late.
_PIECES = st.lists(
    st.sampled_from([SECRET, "'", '"', "\\", "$", "$$", "--", "/*", "*/", "\n", " ", "E", "1"]), max_size=8
)
_TAGS = st.sampled_from(["", "a", "body", "_é1"])


def _plain(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _escaped(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _dollars(text: str, tag: str) -> str:
    return f"${tag}${text.replace('$', '')}${tag}$"


def _block(text: str) -> str:
    return "/*" + text.replace("*/", "").replace("/*", "/*/**/*/").replace("*/", "* /") + "*/"


_CONTENT = _PIECES.map(lambda pieces: SECRET + "".join(pieces) + SECRET)
_LITERALS = st.one_of(
    _CONTENT.map(_plain),
    _CONTENT.map(_escaped).map(lambda text: "E" + text),
    _CONTENT.map(_escaped).map(lambda text: "e" + text),
    # Continued on the next line: of the same form.
    _CONTENT.map(_escaped).map(lambda text: "E'' \n" + text),
    # As a session with standard_conforming_strings = off writes it.
    _CONTENT.map(_escaped),
    _CONTENT.map(lambda text: "U&" + _plain(text)),
    _CONTENT.map(lambda text: "N" + _plain(text)),
    st.tuples(_CONTENT, _TAGS).map(lambda both: _dollars(*both)),
    _CONTENT.map(lambda text: "--" + text.replace("\n", " ") + "\n"),
    st.just(f"/*{SECRET}/*{SECRET}*/{SECRET}' {SECRET}*/"),
)
_CODE = st.sampled_from(
    [
        "SELECT ",
        " , ",
        " x ",
        " = ",
        "; ",
        "(",
        ")",
        "\n",
        "::text",
        '"name"',
        '"E"',
        " $1 ",
        " 1.5e-3",
        " xe ",
        "t1",
        "+",
        "-",
        "/",
    ]
)


@given(st.lists(st.one_of(_LITERALS, _CODE), max_size=12).map(" ".join), st.floats(0, 1))
def test_nothing_secret_is_left_wherever_the_statement_is_cut(statement: str, share: float) -> None:
    assert SECRET not in mask_literals(statement)
    assert SECRET not in mask_literals(statement[: int(share * len(statement))])


@given(st.text(alphabet="'\"\\$-/*eEuU&xXbBnN a1.\nζ", max_size=60))
def test_any_text_is_masked_in_time_and_twice_is_once(statement: str) -> None:
    masked = mask_literals(statement)
    assert mask_literals(masked) == masked or "\\" in statement


@pytest.mark.parametrize(
    ("statement", "masked"),
    [
        ("ALTER ROLE app PASSWORD 'hunter2'", "ALTER ROLE app PASSWORD '?'"),
        (
            "INSERT INTO t1 (a, b2) VALUES (-1, 0xFF, 1_000, .5, 1e-3, $1)",
            "INSERT INTO t1 (a, b2) VALUES (-?, ?, ?, ?, ?, $1)",
        ),
        ("SELECT E'it\\'s', B'01', x'ff', U&'\\0061', N'n', 'it''s'", "SELECT E'?', B'?', x'?', U&'?', N'?', '?'"),
        ('SELECT U&"na\\0061me", "a ""1"" b", a$1, schema1.t2', 'SELECT U&"na\\0061me", "a ""1"" b", a$1, schema1.t2'),
        ("DO $$ BEGIN PERFORM 'x'; END $$; DO $a$ $b$ $a$", "DO $$?$$; DO $$?$$"),
        ("SELECT 1 -- password: x\n, 2 /* a /* b */ c */ FROM t", "SELECT ? --?\n, ? /*?*/ FROM t"),
        ("SELECT 'a'\n'b', E'a' -- c\n'b\\'c'", "SELECT '?'\n'?', E'?' --?\n'?'"),
        # It is continued on another line only; otherwise the second string is one of its own.
        ("SELECT E'a' 'b\\''c' , d", "SELECT E'?' '?'"),
        ("SELECT E'a'/* \n */'b\\''c' , d", "SELECT E'?'/*?*/'?'"),
        ("SELECT E'a'\r'b\\'' , d", "SELECT E'?'\r'?' , d"),
        ("SELECT 'cut", "SELECT '?'"),
        ("SELECT E'cut\\'", "SELECT E'?'"),
        ("SELECT /* cut", "SELECT /*?*/"),
        ("DO $body$ cut $bod", "DO $$?$$"),
        ("SELECT $bo", "SELECT $bo"),
        ('SELECT "cut', 'SELECT "cut'),
        # 'C:\' and then a statement, or one string of 'C:\', and then nothing but it.
        ("SELECT 'C:\\', 'secret' FROM t", "SELECT '?'"),
        ("SELECT 'C:\\\\', 'secret' FROM t", "SELECT '?', '?' FROM t"),
        ("COMMIT PREPARED 'order-17'", "COMMIT PREPARED '?'"),
        ("COMMIT", "COMMIT"),
        ("", ""),
        # An en dash is part of a name, so no E'...' begins after it.
        ("SELECT a\u2013e'x\\' , secret', 1", "SELECT a\u2013e'?'"),
    ],
)
def test_literals_and_comments_are_masked_and_the_rest_is_as_written(statement: str, masked: str) -> None:
    assert mask_literals(statement) == masked
