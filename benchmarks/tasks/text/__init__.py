"""Text: a network with an embedding predicts the next byte of the help texts of Python."""
