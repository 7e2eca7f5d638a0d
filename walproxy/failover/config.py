"""The options of `walproxy failover` and `walproxy switchover`, which may be in the file of `walproxy run`."""

from dataclasses import dataclass

from safekeeper.base.settings import option, text
from walproxy.proxy.config import MembersConfig


@dataclass(frozen=True, kw_only=True)
class FailoverConfig(MembersConfig):
    """The settings of a command that speaks with the safekeepers and with all servers."""

    primary: str = option(
        "How to connect to all PostgreSQL servers, as for walproxy run: a connection string or URI with several hosts",
        parse=text,
        metavar="CONNINFO",
    )
