"""What peers could send, made up by the thousand and the million.

`targets.py` has one function for each decoder of bytes that come from outside. `test_targets.py` runs all of them over
the committed corpus and over damaged frames in a few seconds; `python -m tests.fuzz` lets atheris look for inputs that
reach new lines of the decoders, for as long as one likes, and keeps what it finds in the corpus.
"""
