"""`walproxy demo`: what the project promises, shown on a real PostgreSQL with real crashes.

story.py plays the steps of steps.py in order; workload.py is the load, whose history view.py shows. Nothing here knows
how the consensus works: it kills processes and counts what clients were told.
"""
