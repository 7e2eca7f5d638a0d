"""The agent's work on the PostgreSQL server of its own machine.

managed_server      looks at the server; starts, stops, kills, demotes and promotes it
server_look         the result of a look
rejoin              makes an old primary a standby of the new primary
rejoin_plan         the decision how: follow, pg_rewind, or a base backup
rejoin_folder       the record of an overwrite that has begun, and what is kept of the old data folder
source              the new primary, as far as a rejoin needs it
control_data        the content of pg_control, as pg_controldata prints it
agent_settings      the server's settings that the agent writes
owner_commands      PostgreSQL's programs, run as the owner of the data folder
processes           the processes of one data folder, and signals to them
bounded_sql         statements with a deadline that also holds for a server that hangs
errors              the agent's errors
watchdog            the Linux watchdog device
lease               a lease in etcd, as an additional guard of a promotion
etcd_client         calls of etcd, each with a deadline

Linux only: processes are identified by /proc and signalled by pidfd. All functions block, with a bound; a caller with
an event loop runs them in a thread.
"""
