"""Three tasks, each written for fedmpdd, for Flower and for pfl-research, for `python -m benchmarks tasks`.

A folder holds one task: its problem (model and data, the same for all), and a program for each framework. The programs
are as short as their authors could make them in the way that each framework's documentation shows.
"""
