"""A Flower app: adapters of a pretrained language model, with updates by fedmpdd or FedAvg."""
