"""A page of a table as it was at an LSN: what PostgreSQL itself makes of a base backup and the WAL up to there.

    page            the bytes: their header, how they are shown, in what two of them may differ
    relation        how a relation is named, and where its page is in a data folder
    history         which records make the page, from the WAL: which image it begins with, where it was changed last
    private_server  a PostgreSQL that recovers, accepts no connection, and ends
    restore         all of it: plan, recover, read, compare with the WAL
    primary         the same page of the server that runs, and how it differs

Redo is not implemented again here, for it is the one thing that must be exactly PostgreSQL's. So one page costs the
recovery of the whole backup.
"""
