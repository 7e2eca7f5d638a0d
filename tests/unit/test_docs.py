"""The documentation says what the code does: links resolve, and nothing that a user meets is left out.

`python tests/unit/test_docs.py` writes the tables of docs/reference/configuration.md, docs/reference/tables.md and
docs/reference/events.md anew: from the options, the columns and the kinds of events that the code has.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import click
import pyarrow as pa
import pytest

import safekeeper.base.errors
import safekeeper.cli
import walproxy.cli
import walproxy.cli.configuration
import walproxy.cli.pipeline
import walproxy.proxy.proxy
from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.event_catalogue import KINDS
from safekeeper.base.settings import command_line_name, environment_variable, options_of
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import PROTOCOL_VERSION, AcceptorMessage, ProposerMessage, RefusalCode
from safekeeper.peers.codec import WIRE_VERSION
from safekeeper.process.config import SAFEKEEPER, load_config
from tests.simulation.archive_checker import ArchiveChecker
from tests.simulation.bugs import BUGS
from tests.simulation.checkers import Checker
from tests.simulation.failover import FailoverOperator
from tests.simulation.failover_shell import VirtualServer
from tests.simulation.minority import Minority
from tests.simulation.profiles import PROFILES
from tests.simulation.proposer_reference.checker import ProposerChecker
from tests.simulation.reader_checker import ReaderChecker
from tests.simulation.real_proxy import RealProxy
from tests.simulation.real_puller import RealPuller
from tests.simulation.real_safekeeper import RealSafekeeper
from tests.simulation.reference_checker import ReferenceChecker
from tests.simulation.scenario import SCENARIOS, play
from tests.simulation.shell_checks import ObservedShell
from tests.simulation.shell_disk import ShellDisk
from tests.simulation.shell_reader import Watcher
from tests.simulation.shell_watch import ShellWatch
from tests.simulation.test_scenarios import BITES
from tests.simulation.truncate_checker import TruncateChecker
from tests.simulation.world import World
from tests.unit.test_layers import LAYERS, PURE, PURE_FOLDERS
from walproxy.cli.pipeline_commands.keys import KeyedCommand
from walproxy.pipeline.schemas import COLUMNS, VIEWS, spark_ddl
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.progress import Progress
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.view import state_name
from walproxy.proxy.status import SAFEKEEPER_STATES, safekeeper_state

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
# By the section of the cluster's file.
SETTINGS = {
    role.section: (role, "SAFEKEEPER" if role is SAFEKEEPER else "WALPROXY")
    for role in walproxy.cli.configuration.roles()
    if role.settings is not None
}
PROGRAMS = {"safekeeper": safekeeper.cli.cli, "walproxy": walproxy.cli.cli}

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
_CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_FORMAT = re.compile(r"%[-+.\d]*[a-z]")
_LOG_LINES = re.compile(r"^\| (`.+?) \|", re.MULTILINE)
_OF_THIS_REPOSITORY = re.compile(r"(?:safekeeper|walproxy|tests|docs|deploy)/[\w./-]*\w(?:\.\w+)?/?")


def page(name: str) -> Path:
    """Return the document of this name, in whichever folder of docs/ it is."""
    (found,) = DOCS.rglob(name)
    return found


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def prose(document: Path) -> str:
    return _CODE_BLOCK.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(_CODE_BLOCK.sub("", document.read_text()))
    }


def section(document: str, heading: str) -> str:
    """The text below a heading, up to the next one of the same depth or above."""
    text = page(document).read_text()
    match = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert match is not None, f"docs/{document} has no heading {heading!r}"
    rest = text[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def returned_words(function: Callable[..., Any]) -> set[str]:
    """The words that the source of a function returns literally."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        node.value
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Return) and statement.value is not None
        for node in _results(statement.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _results(expression: ast.expr) -> Iterator[ast.expr]:
    """What an expression can evaluate to, as far as its own text says."""
    if isinstance(expression, ast.IfExp):
        yield from _results(expression.body)
        yield from _results(expression.orelse)
    else:
        yield expression


def commands() -> list[tuple[str, click.Command]]:
    found = []
    for program, group in PROGRAMS.items():
        context = click.Context(group)
        for name in sorted(group.list_commands(context)):
            command = group.get_command(context, name)
            assert command is not None
            found.append((f"{program} {name}", command))
    return found


def option_table(program: str) -> str:
    """The table of a program's options, from the code that declares them."""
    role, prefix = SETTINGS[program]
    lines = [
        "| key of the file | command line | environment | default | what it sets |",
        "|---|---|---|---|---|",
    ]
    assert role.settings is not None
    for name, declared in options_of(role.settings).items():
        default = f"`{declared.default}`" if isinstance(declared.default, str) else ""
        reload = " (reload)" if declared.reloadable else ""
        is_option = not declared.environment_only and not declared.is_key_only
        value = "" if declared.is_flag else f" {declared.metavar}"
        cells = [
            f"`{name}`" if name in role.names() else "",
            f"`{command_line_name(name)}{value}`" if is_option else "",
            f"`{environment_variable(prefix, name)}`",
            default,
            declared.help + reload,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def column_table(view: str) -> str:
    """The columns of a view of the pipeline, as rows of a table."""
    lines = ["| column | type | meaning | in WAL |", "|---|---|---|---|"]
    for column in COLUMNS[view]:
        nullable = ", null" if column.nullable else ""
        data_type = spark_ddl(pa.schema([pa.field("", column.type)])).removeprefix("`` ").lower()
        if data_type.startswith("array<struct"):
            data_type = "array of struct"
        lines.append(f"| `{column.name}` | {data_type}{nullable} | {column.meaning} | {column.source} |")
    return "\n".join(lines) + "\n"


def event_table() -> str:
    """The kinds of events."""
    lines = ["| event | severity | what happened | what to do |", "|---|---|---|---|"]
    for name, kind in KINDS.items():
        lines.append(f"| `{name}` | {kind.severity} | {kind.meaning} | {kind.action} |")
    return "\n".join(lines) + "\n"


def table(name: str) -> str:
    """The rows of a marked table."""
    if name == "events":
        return event_table()
    return column_table(name) if name in COLUMNS else option_table(name)


def with_tables(text: str) -> str:
    """The text with every marked table made anew."""
    return _TABLE.sub(lambda match: match[1] + table(match[2]) + match[4], text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(document: Path) -> None:
    dead = []
    for target in _LINK.findall(prose(document)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_file_of_this_repository_that_a_document_names_is_there(document: Path) -> None:
    named = {span for span in _CODE_SPAN.findall(prose(document)) if _OF_THIS_REPOSITORY.fullmatch(span)}
    assert not sorted(path for path in named if not (ROOT / path).exists())


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if DOCS in d.parents and d.parent.name != "adr"], ids=name_of
)
def test_every_document_is_reached_from_the_index(document: Path) -> None:
    index = page("index.md").read_text()
    assert document.name == "index.md" or f"({document.relative_to(DOCS).as_posix()})" in index


def test_every_decision_is_reached_from_the_index() -> None:
    index = page("index.md").read_text()
    assert not [d.name for d in (DOCS / "design" / "adr").glob("*.md") if f"(design/adr/{d.name})" not in index]


def test_every_code_that_the_invariants_name_is_there() -> None:
    missing = []
    for path, names in _named_code(page("invariants.md").read_text()):
        source = (ROOT / path).read_text()
        for name in names:
            for part in name.split("."):
                if not re.search(rf"^ *(?:(?:async )?def|class) {part}\b|^ *{part}\b *[:=]", source, re.MULTILINE):
                    missing.append(f"{path}: {name}")
    assert not missing


def _named_code(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each file that a paragraph **Code.** names, with the names that follow it."""
    for paragraph in re.findall(r"\*\*Code\.\*\*(.*?)\n\n", text, re.DOTALL):
        path = ""
        names: list[str] = []
        for span in _CODE_SPAN.findall(paragraph):
            if span.endswith(".py"):
                if path:
                    yield path, names
                path, names = span, []
            elif path and re.fullmatch(r"\w+(\.\w+)?", span):
                names.append(span)
        if path:
            yield path, names


def test_each_invariant_has_its_code_and_its_tests() -> None:
    text = page("invariants.md").read_text()
    sections = re.split(r"^## (S\d+[a-e]?) ", text, flags=re.MULTILINE)
    numbers = [f"S{number}" for number in range(1, 16)]
    of_members = ["S8a", "S8b", "S8c", "S8d", "S8e"]
    assert sections[1::2] == [*numbers[:7], "S7a", numbers[7], *of_members, "S9", "S9a", *numbers[9:]]
    for number, body in zip(sections[1::2], sections[2::2], strict=True):
        for part in ("**Statement.**", "**Why.**", "**Code.**", "**Tests.**"):
            assert part in body, f"{number} has no {part}"


def test_every_test_that_the_invariants_name_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", page("invariants.md").read_text()))
    defined = {
        name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert named
    assert not sorted(named - defined)


def test_every_property_that_the_simulation_checks_is_described() -> None:
    text = section("invariants.md", "What follows from them, and is checked")
    checked = {
        name
        for file in (ROOT / "tests" / "simulation").rglob("*.py")
        for name in re.findall(r'\bViolation\(\s*"(\w+)"', file.read_text())
    }
    assert checked
    assert not sorted(name for name in checked if f"| {name} |" not in text)


def test_every_planted_bug_is_named_where_its_rule_is_tested() -> None:
    text = page("invariants.md").read_text()
    tests = dict(re.findall(r"^## (S\d+[a-e]?) .*?\*\*Tests\.\*\* (.*?)\n\n", text, re.MULTILINE | re.DOTALL))
    assert not [name for name, bug in BUGS.items() if f"`{name}`" not in tests.get(bug.rule, text)]


def test_every_checker_and_bug_that_the_table_of_properties_names_is_there() -> None:
    text = section("invariants.md", "What follows from them, and is checked")
    names = set(re.findall(r"`([\w.]+)`", text))
    checkers = (Checker, ReaderChecker, ArchiveChecker, TruncateChecker, FailoverOperator, Minority, World)
    shells = (RealSafekeeper, RealProxy, ReferenceChecker, ProposerChecker, ShellDisk, VirtualServer)
    watchers = (ObservedShell, RealPuller, ShellWatch, Watcher)
    kinds = (*checkers, *shells, *watchers, Acceptor, Proposer, Leadership, Progress)
    functions = {f"{kind.__name__}.{name}" for kind in kinds for name in dir(kind)}
    files = set(re.findall(r"tests/[\w/]+\.py", text))
    assert names <= functions | set(BUGS) | {kind.__name__ for kind in kinds} | files
    assert set(BUGS) <= names | {name for name, bug in BUGS.items() if bug.rule == "S2"}


def test_the_table_of_planted_bugs_says_what_the_hunt_hunts() -> None:
    rows = re.findall(r"^\| (.*) \|$", section("invariants.md", "The planted bugs"), re.MULTILINE)[1:]
    assert len(rows) == len(BUGS)
    for row, (name, bug) in zip(rows, BUGS.items(), strict=True):
        faults = f"scenario `{bug.scenario}`" if bug.scenario else bug.faults
        *cells, seeds = row.split(" |")
        assert " |".join(cells) == f"{bug.rule} | `{name}` | {bug.without} | {faults}"
        assert re.fullmatch(" " if bug.scenario else r" \d+ \(\d+ to \d+\)", seeds), row


def test_every_scenario_is_named_with_the_bug_with_which_it_fails() -> None:
    rows = section("invariants.md", "The schedules").splitlines()
    for path in SCENARIOS.glob("*.txt"):
        row = next((row for row in rows if f"`{path.stem}`" in row), None)
        assert row is not None, f"docs/design/invariants.md does not name {path.stem}"
        assert row.endswith(f"| `{BITES[path.stem]}` |" if path.stem in BITES else "| |"), row


def test_every_schedule_has_its_scenario() -> None:
    rows = re.findall(r"^\| ([A-Q]) \|(.*)$", section("invariants.md", "The schedules"), re.MULTILINE)
    letters = [letter for letter, _ in rows]
    assert letters == 2 * [chr(code) for code in range(ord("A"), ord("Q") + 1)]
    assert not [letter for letter, row in rows[len(rows) // 2 :] if not row.startswith(f" `{letter.lower()}_")]


def test_every_invariant_that_the_code_refers_to_is_described() -> None:
    described = set(re.findall(r"^## (S\d+[a-e]?) ", page("invariants.md").read_text(), re.MULTILINE))
    sources = [*(ROOT / "safekeeper").rglob("*.py"), *(ROOT / "walproxy").rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"\bS\d+[a-e]?\b(?=[,) ])", source.read_text())}
    unknown = used - described
    assert not unknown


def test_every_page_of_the_documentation_that_the_code_mentions_is_there() -> None:
    sources = [*(ROOT / "safekeeper").rglob("*.py"), *(ROOT / "walproxy").rglob("*.py")]
    mentioned = {page for source in sources for page in re.findall(r"docs/[\w/-]+\.md", source.read_text())}
    assert mentioned
    assert not sorted(page for page in mentioned if not (ROOT / page).exists())


def test_every_state_is_described() -> None:
    text = section("operations.md", "States")
    of_proxy = returned_words(state_name) | {_initial_state_of_the_proxy()}
    of_safekeeper = returned_words(vars(Acceptor)["state"].fget)
    of_member = returned_words(safekeeper_state)
    assert len(of_proxy) >= 6
    assert len(of_safekeeper) == 4
    assert of_member == set(SAFEKEEPER_STATES)
    assert not sorted(state for state in of_proxy | of_safekeeper | of_member if f"| `{state}` |" not in text)


def _initial_state_of_the_proxy() -> str:
    match = re.search(r'self\.state = "(\w+)"', inspect.getsource(walproxy.proxy.proxy.Proxy.__init__))
    assert match is not None
    return match[1]


def test_every_log_line_that_operators_are_shown_is_one_of_the_code() -> None:
    shown = [
        line
        for document in DOCUMENTS
        for table in re.findall(r"^\| line.*?(?:\n\n|\Z)", document.read_text(), re.MULTILINE | re.DOTALL)
        for cell in _LOG_LINES.findall(table)
        for line in _CODE_SPAN.findall(cell)
    ]
    said = messages_of_the_code()
    assert len(shown) > 100
    assert not [line for line in shown if not any(map(_instances(line).fullmatch, said))]


def messages_of_the_code() -> set[str]:
    """Every text in the source of the two programs, with `...` for what is filled in."""
    found = set()
    for source in [*(ROOT / "safekeeper").rglob("*.py"), *(ROOT / "walproxy").rglob("*.py")]:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(str(v.value) if isinstance(v, ast.Constant) else "..." for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(_FORMAT.sub("...", node.value))
    return found


def _instances(line: str) -> re.Pattern[str]:
    """Return what matches the messages, with `...` for what is filled in, that a line with `...` may show."""
    return re.compile(".*".join(re.escape(piece) for piece in line.split("...")), re.DOTALL)


def test_every_exit_code_is_described() -> None:
    text = section("cli.md", "Exit codes")
    codes = {value for name, value in vars(safekeeper.base.errors).items() if name.startswith("EXIT_")}
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def test_every_refusal_is_described_with_what_follows_from_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("protocol.md", "Refusals"), re.MULTILINE)
    assert sorted(rows) == sorted(RefusalCode)


def test_every_message_is_in_the_protocol() -> None:
    text = page("protocol.md").read_text()
    messages = {*ProposerMessage.__args__, *AcceptorMessage.__args__}
    assert len(messages) == 35
    assert not sorted(message.__name__ for message in messages if f"`{message.__name__}`" not in text)


def test_every_field_of_the_control_state_is_in_the_protocol() -> None:
    text = section("protocol.md", "What an acceptor keeps").replace("\n", " ")
    spelled_out = {
        "tli_histories": "timeline history files",
        "history": "term history",
        "promised": "promised LeaderId",
    }
    missing = [
        field
        for field in ControlState.__struct_fields__
        if f"`{field}`" not in text and spelled_out.get(field, field.replace("_", " ")) not in text
    ]
    assert not missing


def test_the_versions_that_the_documents_state_are_those_of_the_code() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"Protocol version {PROTOCOL_VERSION}, wire version {WIRE_VERSION}" in changelog
    assert f"wire version {WIRE_VERSION}" in section("protocol.md", "Bytes on the wire")


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_option_is_described(name: str, command: click.Command) -> None:
    text = section("cli.md", name)
    tables = page("configuration.md").read_text()
    assert f"\n{name}" in text, f"docs/reference/cli.md shows no example of {name}"
    options = [
        option for parameter in command.params if isinstance(parameter, click.Option) for option in parameter.opts
    ]
    missing = [option for option in options if not re.search(rf"`{option}(?![\w-])", text + tables)]
    assert not missing


def pipeline_commands() -> Iterator[tuple[str, click.Command]]:
    """The commands of `walproxy pipeline`, a group of them as one."""
    context = click.Context(walproxy.cli.pipeline.pipeline)
    for name in walproxy.cli.pipeline.pipeline.list_commands(context):
        command = walproxy.cli.pipeline.pipeline.get_command(context, name)
        assert command is not None
        yield f"walproxy pipeline {name}", command


@pytest.mark.parametrize(
    ("name", "command"), list(pipeline_commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_of_the_pipeline_and_its_options_are_described(name: str, command: click.Command) -> None:
    text = section("cli.md", name)
    assert f"\n{name}" in text, f"docs/reference/cli.md shows no example of {name}"
    tables = page("configuration.md").read_text() + section("cli.md", "walproxy restore")
    parts = command.commands.values() if isinstance(command, click.Group) else [command]
    options = {
        option
        for part in parts
        for parameter in part.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    options |= {each.name for part in parts if isinstance(part, KeyedCommand) for each in part.keys if each.name}
    assert not sorted(option for option in options if not re.search(rf"`{option}(?![\w-])", text + tables))


def test_no_command_of_the_pipeline_is_described_that_does_not_exist() -> None:
    described = set(re.findall(r"^### (walproxy pipeline [\w-]+)$", page("cli.md").read_text(), re.MULTILINE))
    assert described == {name for name, _ in pipeline_commands()}


def test_no_command_is_described_that_does_not_exist() -> None:
    described = set(re.findall(r"^## ((?:safekeeper|walproxy) [\w-]+)$", page("cli.md").read_text(), re.MULTILINE))
    assert described == {name for name, _ in commands()}


def test_the_tables_of_options_are_those_of_the_code() -> None:
    text = page("configuration.md").read_text()
    assert {match[2] for match in _TABLE.finditer(text)} == set(SETTINGS)
    assert with_tables(text) == text, "run: python tests/unit/test_docs.py"


def test_the_tables_of_columns_are_those_of_the_code() -> None:
    text = page("tables.md").read_text()
    assert [match[2] for match in _TABLE.finditer(text)] == list(VIEWS)
    assert with_tables(text) == text, "run: python tests/unit/test_docs.py"


def test_the_table_of_events_is_that_of_the_code() -> None:
    text = page("events.md").read_text()
    assert [match[2] for match in _TABLE.finditer(text)] == ["events"]
    assert with_tables(text) == text, "run: python tests/unit/test_docs.py"


def test_the_example_of_the_file_is_accepted_and_short(tmp_path: Path) -> None:
    example = re.search(r"^```toml\n(.*?)^```$", page("configuration.md").read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    text = re.sub("/etc/walproxy/(secret|users)", lambda match: str(tmp_path / match[1]), example[1])
    assert len(list(filter(None, text.splitlines()))) <= 25
    for name in ("secret", "users", "walproxy.toml"):
        (tmp_path / name).write_text(text)
    file = tmp_path / "walproxy.toml"
    assert load_config({"id": "1"}, {}, file).proposer_listen.host == "sk1"
    assert walproxy.cli.configuration.load_agent({"name": "pg1"}, file).address.host == "pg1"
    assert "pg1,pg2,pg3" in walproxy.cli.configuration.load_proxy({}, file).primary


def test_every_profile_of_the_simulation_is_described() -> None:
    text = section("hacking.md", "The simulator")
    assert not [name for name in PROFILES if f"| `{name}` |" not in text]


def test_every_module_that_is_checked_to_be_pure_is_named() -> None:
    text = section("hacking.md", "Packages and imports")
    folders = {ROOT / folder for folder in PURE_FOLDERS}
    names = {f"{name_of(path.parent)}/" if path.parent in folders else name_of(path) for path in PURE}
    assert not [name for name in names if f"`{name}`" not in text]


def test_every_package_is_described() -> None:
    text = section("architecture.md", "Packages")
    packages = {f"{program}/{layer}" for program, layers in LAYERS.items() for layer in layers if layer != "__main__"}
    assert not [name for name in packages if f"`{name}/`" not in text and f"`{name}.py`" not in text]


def test_the_example_of_a_scenario_plays(tmp_path: Path) -> None:
    text = page("hacking.md").read_text().partition("\n## How to add a scenario\n")[2]
    example = re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert example is not None
    file = tmp_path / "example.txt"
    file.write_text(example[1])
    assert play(file).records


def test_the_words_of_the_glossary_are_in_order() -> None:
    words = re.findall(r"^\| ([^|]+) \|", page("glossary.md").read_text(), re.MULTILINE)[1:]
    assert len(words) > 50
    assert words == sorted(words, key=str.lower)


def test_every_target_of_the_makefile_is_described() -> None:
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = section("hacking.md", "Targets")
    assert not [target for target in targets if target != "help" and not re.search(rf"`make {target}\b", text)]


if __name__ == "__main__":
    for name in ("configuration.md", "tables.md", "events.md"):
        page(name).write_text(with_tables(page(name).read_text()))
