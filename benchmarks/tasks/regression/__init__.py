"""Regression: a network of one hidden layer learns a smooth function of eight numbers."""
