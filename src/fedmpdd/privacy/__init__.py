"""What an attacker gets from updates, what can be guaranteed, and the paper's theory measured."""
