"""What every other package uses: LSNs, timelines, errors, settings, logs, networks, signals, worker threads."""
