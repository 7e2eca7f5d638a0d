"""The proxy's half of the consensus: a state machine without I/O.

proposer         dispatches events to the phase that it is in
phase            the phases with their transitions, configuration, and what outlives an attempt
roster           the safekeepers: connections, greetings, refusals
campaign         one attempt to win a term: pre-votes, votes, outcome
election         how votes become a donor, a history and the highest position that may be committed
verification     whether the primary continues the donor's log
primary          identities, timelines, where a term begins
primary_stream   the COPY from the primary, and what of it was compared
refusals         primaries that were refused, so that no term is spent on them again
leadership       a term that is led: positions come back, what a quorum holds follows from them
replication      WAL to the members of a term
progress         the state of each member of a term, with its transitions
liveness         which members of a term answer
standbys         what standbys have replayed, and remote_apply
apply_rule       the rule of --remote-apply-standbys
archiving        which safekeeper archives
actions          what the shell is to do, in order
view             what the shell shows: states, positions, members
"""
