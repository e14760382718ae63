"""`python -m moeplan`."""

from moeplan.cli import main

main()
