"""`python -m walproxy` is the same as `walproxy`."""

from walproxy.cli import main

main()
