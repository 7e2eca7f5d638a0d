"""A cluster of local processes: PostgreSQL, safekeepers, a proxy, standbys."""
