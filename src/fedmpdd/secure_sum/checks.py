"""What a whole number is, for everything that counts clients, bits or neighbours."""


def is_whole(value: object, least: int, most: int | None = None) -> bool:
    """Whether a value is an integer, and no truth value, between two bounds.

    Args:
        value: what came.
        least: the smallest that is allowed.
        most: the largest that is allowed, None for no bound.

    """
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return least <= value and (most is None or value <= most)
