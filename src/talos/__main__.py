"""`python -m talos` is the `talos` command."""

from talos.cli import main

main()
