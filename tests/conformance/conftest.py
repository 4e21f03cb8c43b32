from tests.conformance import recordings


def pytest_terminal_summary(terminalreporter):
    """Says how many recordings were really replayed."""
    if not recordings.FOLDER.is_dir():
        terminalreporter.write_line("conformance: no recordings beside the project, nothing replayed")
    elif recordings.replayed:
        terminalreporter.write_line(f"conformance: {len(recordings.replayed)} recordings replayed")
