"""The failure of something that must hold."""


class Unmet(AssertionError):
    """Something that must hold of an answer or of a case does not."""


def expect(holds: object, message: object) -> None:
    """Raise `Unmet` unless it holds."""
    if not holds:
        raise Unmet(str(message))
