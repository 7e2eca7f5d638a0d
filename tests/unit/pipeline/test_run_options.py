"""Options of `walproxy pipeline run` that are refused before anything begins."""

from pathlib import Path

from click.testing import CliRunner

from walproxy.cli.pipeline_commands.run import run as command


def test_the_former_format_is_refused_with_what_to_use(tmp_path: Path) -> None:
    refused = CliRunner().invoke(command, ["/archive", "--to", str(tmp_path / "tables"), "--format", "parquet"])
    assert refused.exit_code == 2
    (line,) = (line for line in refused.output.splitlines() if line.startswith("Error"))
    assert "--format" in line
    assert "leave it out for delta" in line
    assert "--parquet FILE" in line
    assert list(tmp_path.iterdir()) == []
