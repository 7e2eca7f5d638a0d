"""SASLprep, the form in which passwords are compared, as in PostgreSQL and libpq.

RFC 4013 maps special spaces to a space, removes invisible characters, normalizes to NFKC, and prohibits control
characters, private use, characters unassigned in Unicode 3.2, and mixtures of writing directions. PostgreSQL deviates
in two points, and both ends must do the same for the same result (src/common/saslprep.c): prohibited characters are
searched before the normalization, and a password that contains one is not refused but used unchanged.

Pure: no I/O.
"""

import stringprep
import unicodedata

_PROHIBITED = (
    stringprep.in_table_a1,  # unassigned in Unicode 3.2
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def prepare_password(password: str) -> str:
    """Return `password` in the form that is hashed."""
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in password
        # U+200B is in both tables; PostgreSQL makes it a space.
        if stringprep.in_table_c12(character) or not stringprep.in_table_b1(character)
    )
    if not mapped or _is_prohibited(mapped):
        return password
    return unicodedata.normalize("NFKC", mapped)


def _is_prohibited(text: str) -> bool:
    if any(in_table(character) for in_table in _PROHIBITED for character in text):
        return True
    # A text with right-to-left letters must have no left-to-right ones, and must begin and end with the former.
    if not any(stringprep.in_table_d1(character) for character in text):
        return False
    if any(stringprep.in_table_d2(character) for character in text):
        return True
    return not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1]))
