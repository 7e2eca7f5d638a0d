"""What `walproxy torture` refuses before anything is started."""

import importlib.util
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError
from walproxy.cli.torture import check_report, torture
from walproxy.installation import pip_install


def test_a_soak_takes_no_seed() -> None:
    answer = CliRunner().invoke(torture, ["--soak", "--seed", "3", "--minutes", "0.001"])
    assert answer.exit_code == 2
    assert "--seed cannot be combined with --soak" in answer.output


def test_a_report_that_could_not_be_written_is_refused_before_the_run() -> None:
    answer = CliRunner().invoke(torture, ["--soak", "--minutes", "0.001", "--report", "/not-there/report.html"])
    assert isinstance(answer.exception, ConfigurationError)
    assert (
        str(answer.exception) == "could not write /not-there/report.html: the folder does not exist; correct --report"
    )


@pytest.mark.parametrize("missing", ["jinja2", "plotly"])
def test_a_report_without_its_libraries_is_refused_before_the_run(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_report(tmp_path / "report.html")
    find_spec = importlib.util.find_spec

    def without(name: str) -> ModuleSpec | None:
        return None if name == missing else find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ConfigurationError, match=rf"needs {missing}.*{re.escape(pip_install('lab'))}"):
        check_report(tmp_path / "report.html")
