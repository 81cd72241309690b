"""What an attacker gets from updates, what protects, and the paper's theory measured."""
