"""`python -m fedmpdd` is `fedmpdd`."""

from fedmpdd.cli import main

main()
