"""Counts of the votes and refusals that safekeepers have sent: a safekeeper counts its own, a proxy those it receives.

Pure.
"""

from safekeeper.consensus.messages import AcceptorMessage, Refusal, RefusalCode, VoteResponse


class AnswerCounts:
    """Counts since the start of the process.

    Attributes:
        granted, refused: votes, by the answer. Pre-votes are not counted, since they promise nothing.
        refusals: messages that were refused, by the code of the reason; each code is listed.
    """

    def __init__(self) -> None:
        self.granted = self.refused = 0
        self.refusals = dict.fromkeys(RefusalCode, 0)

    def count(self, message: AcceptorMessage) -> None:
        """Count a message if it is a vote or a refusal."""
        if isinstance(message, VoteResponse):
            if message.granted:
                self.granted += 1
            else:
                self.refused += 1
        elif isinstance(message, Refusal):
            self.refusals[message.code] += 1
