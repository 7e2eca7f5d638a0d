"""Why mutations may survive: `survivors.toml`, by the id of the mutation."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.edits import Mutation
from tests.mutation.trials import Verdict

SURVIVORS = Path(__file__).with_name("survivors.toml")
EXCUSES = {
    "equivalent": "the mutated code does the same",
    "redundant": "another rule, which is tested, prevents the damage",
    "liveness": "nothing is lost or wrong: something is done later, again, or with more work",
    "report": "only what operators read is different",
}


class ExplanationsInvalid(Exception):
    """The file of explanations is not valid."""


@dataclass(frozen=True)
class Explanation:
    """Why one mutation may survive: a key of `EXCUSES`, and a sentence."""

    excuse: str
    why: str


def read(path: Path = SURVIVORS) -> dict[str, Explanation]:
    """Return the explanations.

    Raises:
        ExplanationsInvalid: a table has another form.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ExplanationsInvalid(f"{path.name}: {error}") from error
    explanations = {}
    for mutation_id, table in tables.items():
        if not isinstance(table, dict) or set(table) != {"excuse", "why"} or not table["why"]:
            raise ExplanationsInvalid(f"{path.name}: {mutation_id}: requires excuse and why, and nothing else")
        if table["excuse"] not in EXCUSES:
            raise ExplanationsInvalid(f"{path.name}: {mutation_id}: excuse is not one of {', '.join(EXCUSES)}")
        explanations[mutation_id] = Explanation(**table)
    return explanations


def unexplained(verdicts: Iterable[Verdict], explanations: dict[str, Explanation]) -> list[Verdict]:
    """Return the survivors that have no explanation."""
    return [verdict for verdict in verdicts if verdict.survived and verdict.id not in explanations]


def outdated(
    explanations: dict[str, Explanation], mutations: Iterable[Mutation], verdicts: dict[str, Verdict]
) -> list[str]:
    """Return a line for each explanation whose mutation no longer exists, or is detected.

    Args:
        mutations: all of the present source.
        verdicts: of those that were tried.
    """
    ids = {mutation.id for mutation in mutations}
    # The mutation of the same number may be the same one in a function that has changed.
    present = {mutation_id.split("@")[0]: mutation_id for mutation_id in ids}
    lines = []
    for mutation_id in explanations:
        if mutation_id not in ids:
            renamed = present.get(mutation_id.split("@")[0])
            lines.append(f"{mutation_id} no longer exists" + (f"; perhaps it is {renamed}" if renamed else ""))
        elif mutation_id in verdicts and not verdicts[mutation_id].survived:
            verdict = verdicts[mutation_id]
            lines.append(f"{mutation_id} is detected by {verdict.killed_by}: {verdict.test}")
    return lines


def template(mutation: Mutation) -> str:
    """Return the table to complete for a survivor."""
    return f'# {mutation.change}\n["{mutation.id}"]\nexcuse = ""\nwhy = ""\n'
