from tests.conformance import recordings


def pytest_terminal_summary(terminalreporter):
    """Says how many recordings were really replayed."""
    if not recordings.FOLDER.is_dir():
        terminalreporter.write_line("conformance: no recordings beside the project, nothing replayed")
    elif recordings.replayed:
        terminalreporter.write_line(f"conformance: {len(recordings.replayed)} recordings replayed")


def pytest_sessionfinish(session):
    """One of several processes that share the suite says which it has replayed ..."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["replayed"] = sorted(recordings.replayed)


def pytest_testnodedown(node):
    """... and the one that reports puts them together."""
    recordings.replayed.update(getattr(node, "workeroutput", {}).get("replayed", ()))
