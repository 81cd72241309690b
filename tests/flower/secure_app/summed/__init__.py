"""An app whose gradients follow from a node's number, so that their sum can be computed apart."""
