"""What is made of the code is made of the code as it is."""

from pathlib import Path
from typing import ClassVar

import pytest
import reference
import yaml

from proxy.config import model as c

ROOT = Path(__file__).parent.parent
OBSERVABILITY = ROOT / "docs" / "observability.md"


def test_the_page_on_the_configuration_is_what_the_schema_says():
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == reference.configuration(), "run `make docs`"


def test_the_tables_of_events_and_metrics_are_what_the_code_says():
    page = OBSERVABILITY.read_text()
    assert page == reference.with_tables(page), "run `make docs`"
    assert "| `request.completed` | info |" in page
    assert "| `toolproxy_requests_total` | counter | `route`, `client`, `model`, `status` |" in page


def test_every_key_of_the_schema_is_on_the_page():
    page = (ROOT / "docs" / "configuration.md").read_text()
    sections = [kind for _, kind in reference._SECTIONS]  # noqa: SLF001 - ours
    missing = [
        f"{kind.__name__}.{name}" for kind in sections for name in kind.__annotations__ if f"| `{name}` |" not in page
    ]
    assert missing == []
    made = {kind for kind in vars(c).values() if isinstance(kind, type) and issubclass(kind, c.Value)}
    elsewhere = made - {*sections, c.Value, c.Config}
    assert {kind.__name__ for kind in elsewhere} == {
        "BreakerConfig",
        "BudgetConfig",
        "CheckConfig",
        "CorsConfig",
        "PriceConfig",
        "ReadConfig",
        "Timeouts",
    }
    for kind in elsewhere:
        assert [name for name in kind.__annotations__ if f".{name}` |" not in page] == []


def test_a_field_that_says_nothing_about_itself_is_not_accepted():
    class Silent(c.Value, frozen=True, kw_only=True):
        """A section."""

        field: ClassVar[int] = 1
        quiet: int = 2

    (info,) = reference._fields(Silent)
    with pytest.raises(reference.NoDescription, match=r"Silent\.quiet needs a comment"):
        list(reference._rows(Silent, info, {}, set()))  # noqa: SLF001


def test_every_alert_says_what_to_do():
    page = (ROOT / "docs" / "alerts.md").read_text()
    alerts = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert [alert["alert"] for alert in alerts if f"## {alert['alert']}\n" not in page] == []
