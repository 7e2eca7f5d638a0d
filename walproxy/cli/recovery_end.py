"""`walproxy recovery-end`: PostgreSQL's recovery_end_command after `walproxy restore`."""

from pathlib import Path

import click

from safekeeper.base.errors import ConfigurationError
from walproxy.recovery.server_mode import Mode, mode_of
from walproxy.recovery.settings_block import AUTO_CONF, SETTINGS_FILE, remove_settings


@click.command("recovery-end")
@click.argument("settings", metavar="FILE", type=click.Path(path_type=Path))
def recovery_end(settings: Path) -> None:
    """Remove the settings of a recovery that has ended: for recovery_end_command.

    `walproxy restore` adds settings to postgresql.auto.conf of the data folder that it makes, this command as
    recovery_end_command among them, and writes FILE beside it. Both are removed. It can be run manually, and
    repeatedly.

    \b
    Example, in the data folder:
      walproxy recovery-end walproxy-recovery.toml
    """
    data_directory = settings.absolute().parent
    if settings.name != SETTINGS_FILE:
        raise ConfigurationError(f"{settings} is not a file of walproxy restore: use {SETTINGS_FILE} of a data folder")
    if mode_of(data_directory) is Mode.RECOVERY:
        raise ConfigurationError(f"the recovery of {data_directory} has not ended: it needs its settings")
    try:
        remove_settings(data_directory)
    except OSError as error:
        raise ConfigurationError(
            f"could not remove the settings of the recovery: {error.filename or data_directory / AUTO_CONF}: "
            f"{error.strerror or error}"
        ) from error
