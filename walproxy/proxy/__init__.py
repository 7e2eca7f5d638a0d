"""The running proxy, and the commands that act on its cluster.

proxy                   composition: executes the proposer's actions
execution               one event at a time, until the proxy ends
proxy_watch             observes the state: the log, events, and the watches below
primary_feed            the primary: connects to its hosts, streams, reports positions
feed_connection         one connection to it: state, requested WAL, COPY
feed_slot               the proxy's replication slot there
safekeeper_link         keeps one connection to one safekeeper
window                  the WAL that is still to be sent
config, credentials     options, secrets
status_fields           what /status consists of
status, status_pages    the state of the proxy, over HTTP
progress_socket         the part of it that the agent requests
status_client           fetches it
status_table            formats it
metrics, readiness      /metrics, /readyz
measurements            times and counts since the start: of what follows, and of answers
commit_times            how long commits wait for safekeepers and standbys
election_times          elections and terms
levels, levels_table    `walproxy levels`
health_check            `walproxy check`
sql_watch               warns if SQL on the primary is not possible
quorum_watch            the alarm while the quorum is lost
gate                    whether commits wait for this proxy: a judgement of PostgreSQL's settings
primary_watch           reads these settings, and warns of logical subscribers that run ahead of the quorum
primary_query           its query
member_problem          why a member is missing, in one line
sight                   what was found of the safekeepers at one moment, and their cluster
rebootstrap             a new cluster on old data folders
rebootstrap_undo        its undo
"""
