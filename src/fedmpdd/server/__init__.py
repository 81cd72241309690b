"""What a server does with a round, without PyTorch: its step, and files that it goes on from."""
