"""What an attacker gets from updates, and what can be guaranteed."""
