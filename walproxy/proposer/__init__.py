"""The proxy's half of the consensus: a state machine without I/O.

proposer         the proposer: its ticks, and what the shell reads; the rest is in the classes that it inherits from:
safekeeper_events, primary_events, operator_events
terms            how terms begin, and what ends them
attempts         when bootstraps and attempts to win a term begin
primary_refusals when a primary is refused, and what follows
proposer_state   the state that these share, with its checks
phase            the phases with their transitions, configuration, and the state kept between attempts
roster           the safekeepers: connections, greetings, refusals
campaign         one attempt to win a term: pre-votes, votes, outcome
election         how votes become a donor, a history and the highest position that may be committed
verification     whether the primary continues the donor's log
primary          identities, timelines, the start of a term
primary_stream   the COPY from the primary, and its comparison with the log
refusals         how long each primary that elections have refused waits before the next one
leadership       a term that is led: the members' positions, and the quorum's
replication      WAL to the members of a term
progress         the state of each member of a term, with its transitions
pulling          which WAL members pull from each other
liveness         which members of a term answer
standbys         the positions of standbys, and remote_apply
apply_rule       the rule of remote_apply_standbys
archiving        which safekeeper archives
actions          the actions that the shell executes, in order
view             the values that the shell shows: states, positions, members
"""
