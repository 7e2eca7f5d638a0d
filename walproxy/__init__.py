"""walproxy: makes the commits of a stock PostgreSQL durable on a quorum of safekeepers."""
