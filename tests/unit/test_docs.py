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
from typing import Any, get_args

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import click
import msgspec
import pyarrow as pa
import pytest

import safekeeper.base.errors
import safekeeper.cli
import walproxy.cli
import walproxy.cli.configuration
import walproxy.cli.pipeline
import walproxy.proxy.proxy_watch
from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.event_catalogue import KINDS
from safekeeper.base.settings import command_line_name, environment_variable, options_of
from safekeeper.base.status_fields import SafekeeperStatus
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import PROTOCOL_VERSION, AcceptorMessage, ProposerMessage, RefusalCode
from safekeeper.peers.codec import WIRE_VERSION
from safekeeper.process.config import SAFEKEEPER, load_config
from tests.simulation.bugs.planted import BUGS, Bug
from tests.simulation.scenarios.scenario import FAILS_WITH, SCENARIOS, play
from tests.simulation.world.profiles import PROFILES
from tests.unit.test_layers import LAYERS, PURE, PURE_FOLDERS
from walproxy.cli.pipeline_commands.keys import KeyedCommand
from walproxy.pipeline.schemas import COLUMNS, VIEWS, spark_ddl
from walproxy.proposer.view import state_name
from walproxy.proxy.status import SAFEKEEPER_STATES, safekeeper_state
from walproxy.proxy.status_fields import ProxyStatus

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

OF_OTHER_PROGRAMS = {
    # initdb, pg_config, postgres, pg_rewind, pg_basebackup, pg_receivewal and pgbench.
    *("--auth", "--encoding", "--no-locale", "--no-sync", "--username", "--wal-segsize", "--bindir", "--single"),
    *("--config-file", "--restore-target-wal", "--source-server", "--target-pgdata", "--no-password", "--checkpoint"),
    *("--manifest-checksums", "--no-manifest", "--tablespace-mapping", "--log-prefix"),
    # Barman, pgBackRest and others.
    *("--partial-wal", "--recovery-timeout"),
    # setpriv, docker and etcdctl.
    *("--ambient-caps", "--clear-groups", "--inh-caps", "--pdeathsig", "--regid", "--reuid"),
    *("--endpoints", "--profile", "--tag", "--ulimit"),
    # Of tests/, and of pytest.
    *("--archives", "--folder", "--majors"),
}
"""Options that are not those of walproxy and safekeeper."""

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w-])")
_COMMAND_LINE = re.compile(r"(?<![\w/.-])(?:walproxy|safekeeper) [a-z][^|&;#\n]*")
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


def bug_table() -> str:
    """The planted bugs, by rule."""
    lines = [
        "| rule | planted bug | what is left out | faults that find it | scenarios that fail with it |",
        "|---|---|---|---|---|",
    ]
    kinds = ("S", "step", "checks")
    order = re.compile(r"(S|step|checks) ?(\d*)([a-e]?)")

    def place(item: tuple[str, Bug]) -> tuple[int, int, str]:
        match = order.fullmatch(item[1].rule)
        assert match is not None, item
        return kinds.index(match[1]), int(match[2] or 0), match[3]

    for name, bug in sorted(BUGS.items(), key=place):
        scenarios = ", ".join(f"`{each}`" for each, with_bug in FAILS_WITH.items() if with_bug == name)
        faults = "" if bug.scenario else bug.faults
        lines.append(f"| {bug.rule} | `{name}` | {bug.without} | {faults} | {scenarios} |")
    return "\n".join(lines) + "\n"


def table(name: str) -> str:
    """The rows of a marked table."""
    if name == "events":
        return event_table()
    if name == "bugs":
        return bug_table()
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


def test_each_rule_has_its_reason_its_code_and_what_detects_its_lack() -> None:
    text = page("invariants.md").read_text()
    sections = re.split(r"^## ([SX]\d+[a-e]?) ", text, flags=re.MULTILINE)
    rules = [f"S{number}" for number in range(1, 16)]
    of_members = ["S8a", "S8b", "S8c", "S8d", "S8e"]
    assert sections[1::2] == [*rules[:7], "S7a", rules[7], *of_members, "S9", "S9a", *rules[9:], "X1"]
    sources = [*(ROOT / "safekeeper").rglob("*.py"), *(ROOT / "walproxy").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"\b[SX]\d+[a-e]?\b", source.read_text())}
    bugs = {bug.rule for bug in BUGS.values()}
    for rule, body in zip(sections[1::2], sections[2::2], strict=True):
        assert "**Statement.**" in body, rule
        assert "**Why.**" in body, rule
        assert rule in named, f"no code names {rule}"
        assert (rule in bugs) != ("**Tests.** No bug is planted." in body), rule


def test_every_property_that_the_simulation_checks_is_described() -> None:
    text = section("invariants.md", "What follows from them, and is checked")
    checked = {
        name
        for file in (ROOT / "tests" / "simulation").rglob("*.py")
        for name in re.findall(r'\bViolation\(\s*"(\w+)"', file.read_text())
    }
    assert checked
    assert not sorted(name for name in checked if f"| {name} |" not in text)


def test_the_table_of_planted_bugs_is_that_of_the_code() -> None:
    text = page("invariants.md").read_text()
    assert [match[2] for match in _TABLE.finditer(text)] == ["bugs"]
    assert with_tables(text) == text, "run: python tests/unit/test_docs.py"


def test_every_schedule_has_its_scenario() -> None:
    letters = re.findall(r"^\| ([A-Q]) \|", section("invariants.md", "The schedules"), re.MULTILINE)
    assert letters == [chr(code) for code in range(ord("A"), ord("Q") + 1)]
    heads = [path.read_text() for path in SCENARIOS.glob("*.txt")]
    assert not [letter for letter in letters if not any(re.match(f"# Schedule {letter}[.,]", head) for head in heads)]


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


@pytest.mark.parametrize(
    ("title", "structure"),
    [("Status of the proxy", ProxyStatus), ("Status of a safekeeper", SafekeeperStatus)],
)
def test_every_field_of_status_is_described_and_no_other(title: str, structure: type[msgspec.Struct]) -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section("operations.md", title), re.MULTILINE)
    described: dict[str, str] = {}
    for names, text in rows:
        for name in re.findall(r"`(\w+)", names):
            described[name] = f"{described.get(name, '')} {text}"
    fields = {field.encode_name: names_within(field.type) for field in msgspec.structs.fields(structure)}
    assert described.keys() == fields.keys()
    assert not {name: inner for name, text in described.items() if (inner := fields[name] - words_of(text))}


def names_within(kind: Any) -> set[str]:
    """Return the names of the fields of each structure in a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return {field.encode_name for field in fields}.union(*(names_within(field.type) for field in fields))
    return set().union(*map(names_within, get_args(kind)))


def words_of(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)(?:\[\])?`", text))


def test_the_fields_that_scripts_can_rely_on_are_first() -> None:
    first = section("operations.md", "Status of the proxy").partition("\n| | |\n")[0]
    names = [
        name for names in re.findall(r"^\| (`.*?) \|", first, re.MULTILINE) for name in re.findall(r"`(\w+)", names)
    ]
    assert names == list(ProxyStatus.__struct_fields__[: len(names)]) and names[-1] == "safekeepers"


def _initial_state_of_the_proxy() -> str:
    match = re.search(r'self\.state = "(\w+)"', inspect.getsource(walproxy.proxy.proxy_watch.ProxyWatch.__init__))
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


def options_of_commands() -> dict[str, set[str]]:
    """The options of each command of both programs, also of those in groups, by its words."""
    found: dict[str, set[str]] = {}

    def visit(name: str, command: click.Command) -> None:
        found[name] = {option for each in command.params if isinstance(each, click.Option) for option in each.opts} | {
            "--help"
        }
        if isinstance(command, click.Group):
            context = click.Context(command)
            for part in command.list_commands(context):
                inner = command.get_command(context, part)
                assert inner is not None
                visit(f"{name} {part}", inner)

    for program, group in PROGRAMS.items():
        visit(program, group)
    return found


def options_not_of_the_command(line: str) -> list[str]:
    """The options in the command lines of a text that are not those of their commands."""
    known = options_of_commands()
    wrong = []
    for match in _COMMAND_LINE.finditer(line):
        words = match[0].split()
        name = words[0]
        if f"{name} {words[1]}" not in known:
            continue  # A line of the log.
        for word in words[1:]:
            if f"{name} {word}" in known:
                name = f"{name} {word}"
        given = {word.strip("`'\"();,.:[]").partition("=")[0] for word in words if word.lstrip("`'([").startswith("--")}
        wrong += [f"{name} {each}" for each in sorted(given - known[name] - {"--"})]
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_commands_of_the_documents_have_the_options_that_are_shown(document: Path) -> None:
    text = document.read_text().replace("\\\n", " ")
    shown = [line for block in _CODE_BLOCK.findall(text) for line in block.splitlines()]
    shown += _CODE_SPAN.findall(_CODE_BLOCK.sub("", text))
    assert not [each for line in shown for each in options_not_of_the_command(line)]


def test_every_option_that_the_documents_name_is_one_of_some_command() -> None:
    known = set().union(*options_of_commands().values()) | declared_options() | OF_OTHER_PROGRAMS
    named = {
        f"{name_of(document)}: {span}"
        for document in DOCUMENTS
        if "design" not in document.parts  # There are options of the tests' own tools.
        for span in _CODE_SPAN.findall(prose(document))
        if (match := _OPTION.match(span)) and match[0] not in known
    }
    assert not named


def test_every_option_that_a_message_names_is_one_of_some_command() -> None:
    known = set().union(*options_of_commands().values()) | declared_options() | OF_OTHER_PROGRAMS
    unknown = {
        f"{name_of(path)}:{line}: {option}"
        for path, line, text in literals()
        for option in _OPTION.findall(text)
        if option not in known
    }
    assert not unknown


def literals() -> Iterator[tuple[Path, int, str]]:
    """The texts in the code of both programs."""
    for package in PROGRAMS:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                # A module's own docstring may have arrows in it.
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno > 1:
                    yield path, node.lineno, node.value


def declared_options() -> set[str]:
    """The options that programs of the laboratory declare: the text is the whole option."""
    return {text for path, _, text in literals() if "lab" in path.parts and _OPTION.fullmatch(text)}


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
    for name in ("configuration.md", "tables.md", "events.md", "invariants.md"):
        page(name).write_text(with_tables(page(name).read_text()))
