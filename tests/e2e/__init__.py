"""Tests over containers: the project's own image, started and killed as an operator would."""
