"""A number with what it counts, for messages: the noun has a plural."""


def counted(number: float, noun: str) -> str:
    """A number and a noun whose plural takes an s: "1 token", "2 tokens", "0.5 seconds"."""
    return f"{number if isinstance(number, int) else f'{number:g}'} {noun}{'' if number == 1 else 's'}"
