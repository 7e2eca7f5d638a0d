"""The base of all other packages: LSNs, timelines, errors, settings, logs, networks, signals, histograms, worker
threads, the fields of /status.
"""
