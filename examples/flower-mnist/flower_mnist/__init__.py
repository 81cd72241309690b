"""A Flower app: digits, a CNN, and updates by fedmpdd, FedAvg or FedSGD."""
