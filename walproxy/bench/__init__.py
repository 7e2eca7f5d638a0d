"""The benchmark: what a commit costs with each way to make it durable elsewhere, side by side on one machine.

Three arms, each with a PostgreSQL of its own, idle while it is not its turn:

    local          no standby: the baseline
    native-quorum  three `pg_receivewal --synchronous`, synchronous_standby_names = 'ANY 2 (...)'
    walproxy       three safekeepers behind a proxy

Machines are noisy and drift, so single figures say little: the arms take turns in every round, in a rotating order, and
what is reported is the median of the rounds' ratios.
"""
