"""Datasets, one file each."""
