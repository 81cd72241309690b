"""What is trained: datasets, how they are dealt out, and models."""
