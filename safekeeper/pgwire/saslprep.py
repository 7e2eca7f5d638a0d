"""SASLprep, the form in which passwords are compared, as PostgreSQL and libpq do it.

RFC 4013 maps odd spaces to a space, drops what is invisible, normalizes to NFKC, and prohibits controls, private use,
what Unicode 3.2 did not know, and mixtures of writing directions. PostgreSQL deviates in two points, and both ends must
do the same or a password is not the same (src/common/saslprep.c): what is prohibited is looked for before the
normalization, and a password with something prohibited is not refused but taken as it is.

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
    # A text that has right-to-left letters has no left-to-right ones, and begins and ends with the former.
    if not any(stringprep.in_table_d1(character) for character in text):
        return False
    if any(stringprep.in_table_d2(character) for character in text):
        return True
    return not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1]))
