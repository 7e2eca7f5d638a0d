"""The agent: its work on the PostgreSQL server of its own machine, and what it shares through the safekeepers.

decision            what the agent does next
agent               its loops, its report
watches             the loops that look at the safekeepers and at the server
steps               the steps that it takes
work                what it does for the lead: the states, and the transitions between them
activity            what it does, in words
guards              what guards a promotion: lease, watchdog, fence_command
config              its options
proxy_process       its `walproxy run`
managed_server      looks at the server; starts, stops, kills and demotes it
server_look         the result of a look
rejoin              makes an old primary a standby of the new primary
rejoin_plan         the decision how: follow, pg_rewind, or a base backup
rejoin_folder       the record of an overwrite that has begun, and what is kept of the old data folder
source              the new primary, as far as a rejoin needs it
control_data        the content of pg_control, as pg_controldata prints it
agent_settings      the server's settings that the agent writes
ready               a standby made ready for another manager's promotion
hand_over           the WAL that it lacks, written to its pg_wal
standby_folder      that pg_wal
owner_commands      PostgreSQL's programs, run as the owner of the data folder
processes           the processes of one data folder, and signals to them
errors              the agent's errors
watchdog            the Linux watchdog device
report              what an agent reports of its server, and the settings that all agents share
sight               what an agent sees of the safekeepers at one moment
safekeeper_views    exchanges with all safekeepers
state               what pages and commands show of the agents and the log
rest, metrics       the HTTP pages of an agent
rest_answers        the content of these pages: Patroni's REST
orders              the decision whether an order can be given, and how far it is
operator_client     what `walproxy cluster` does through the safekeepers
lease               a lease in etcd, as an additional guard of a promotion
lease_guard         when the agent holds it
etcd_client         calls of etcd, each with a deadline

Linux only: processes are identified by /proc and signalled by pidfd. All functions but those of `agent`, `watches`,
`steps`, `guards`, `ready`, `hand_over`, `lease_guard`, `proxy_process`, `safekeeper_views` and `operator_client` block,
with a bound; a caller with an event loop runs them in a thread.
"""
