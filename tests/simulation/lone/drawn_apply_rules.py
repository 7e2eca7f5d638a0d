"""Random texts of `remote_apply_standbys`, each made together with what it means, and compared with the parser.

Theory of operation. A text is put together from a form, a number and names, so what it means is known without reading
it: nothing here parses. A form that the parser must refuse means None.
"""

import random

from tests.simulation.checks.violation import Violation
from walproxy.proposer.apply_rule import ApplyRule, parse_apply_rule

# Each name as it is compared, and ways of writing it.
NAMES = {
    "r1": ("R1", "r1", '"R1"', ' "r1" '),
    "r2": ("R2", "r2", '"r2"'),
    "r3": ("R3", '"R3"'),
    'a "b", c': ('"a ""b"", c"', '"A ""B"", C"'),
    "any": ('"any"', '"ANY"'),
    "2": ('"2"',),
    "Ä": ("Ä",),
}
MARKS = (", ", ",", " ,\t")
Meaning = tuple[int, tuple[str, ...]] | None


def drawn(rng: random.Random) -> ApplyRule:
    """Return a rule: that of a drawn text, or an empty one if the text is to be refused.

    Raises:
        Violation: the parser takes the text for something else.
    """
    text, meaning = _draw(rng)
    try:
        rule = parse_apply_rule(text)
    except ValueError:
        if meaning is not None:
            raise Violation("Reference", f"the rule {text!r} is refused, and means {meaning}") from None
        return ApplyRule()
    if (rule.count, rule.names) != meaning:
        raise Violation("Reference", f"the rule {text!r} is taken for {rule.count, rule.names}, and means {meaning}")
    return rule


def _draw(rng: random.Random) -> tuple[str, Meaning]:
    """Draw a text and what it means."""
    names = tuple(rng.sample(list(NAMES), rng.choice((1, 1, 2, 3))))
    listed = rng.choice(MARKS).join(rng.choice(NAMES[name]) for name in names)
    count = rng.choice((0, 1, 1, 2, 3))
    any_text = rng.choice(("ANY", "any", "Any"))
    some = (count, names) if 0 < count <= len(names) else None
    forms: tuple[tuple[str, Meaning], ...] = (
        ("", (0, ())),
        ("  ", (0, ())),
        (listed, (len(names), names)),
        (f" {listed} ", (len(names), names)),
        (f"{any_text} {count} ({listed})", some),
        (f"{any_text}  {count}({listed}) ", some),
        (f"{any_text} {count} (*)", (count, ()) if count else None),
        (f"{any_text} {count}", (count, ()) if count else None),
        ("any", (1, ("any",))),
        ("first", (1, ("first",))),
        (f"first, {listed}", (1 + len(names), ("first", *names))),
    )
    broken = (
        "*",
        f"FIRST {max(1, count)} ({listed})",
        f"first {max(1, count)}",
        f"{listed}, {listed}",
        f"{any_text} 1 ({listed}, {listed})",
        f"{listed},",
        f", {listed}",
        f"({listed})",
        f"{listed} {listed}",
        f"{any_text} 1 {listed}",
        f"{any_text} 1 ({listed}",
        f"{any_text} 1 {listed})",
        f"{any_text} 1 ()",
        f"{any_text} ({listed})",
        f"{any_text} x ({listed})",
        f'{any_text} "1" ({listed})',
        f'{listed}, "R9',
        f"{listed}; {listed}" if len(names) > 1 else '""',
        f"{listed} * {listed}",
    )
    return rng.choice(forms) if rng.random() < 0.7 else (rng.choice(broken), None)
