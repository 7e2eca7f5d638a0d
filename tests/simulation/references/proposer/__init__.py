"""A second statement of the proposer, written from docs/design/protocol.md, that looks on at the real one.

checker.py       passes the events of a proposer on to the reference, and compares
proposer.py      an event and its actions: what the protocol fixes, what it permits; what is not modelled
safekeepers.py   the events of safekeepers
broken.py        messages that break the protocol
primary.py       the events of the primary
changes.py       changes of the members (step 10); their rules: members.py
beginnings.py    an attempt, a bootstrap, or the end of the run
run.py           the state that these events share, and how attempts and terms end
leading.py       a term is won, and safekeepers join it
campaign.py      an attempt to win a term (steps 2 to 4, 12, 13)
term.py          a term that is led: what is sent (steps 5 to 7, 9); term_state.py, term_members.py: what was
                 sent and answered
ballots.py       formulas: quorums, the donor, M, the history, where a term begins (steps 4 and 5)
refused_hosts.py hosts that are refused again without a vote (4.10)
archive.py       what the archiver has reported (9.2)
roster.py        what greetings say, and what a run keeps (steps 0, 1, 11)
standbys.py      what standbys have replayed (7.6, 7.14)
actions.py       how actions are compared
"""
