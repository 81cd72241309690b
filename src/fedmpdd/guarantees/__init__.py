"""What can be promised: an (ε, δ), against whom, and what it rests on."""
