"""`walproxy demo`: what the project promises, shown on a real PostgreSQL with real crashes.

story.py plays the steps of steps.py in order; workload.py is the load, whose history view.py shows. Nothing here
depends on the consensus: it kills processes and counts the acknowledgements that clients received.
"""
