from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.search.dates import day_of

TODAY = date(2026, 11, 25)
FORMS = ["%Y-%m-%d", "%Y/%m/%dT10:00:00Z", "%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%b. %d, %Y", "%m/%d/%Y"]


@given(st.dates(date(1990, 1, 1), TODAY), st.sampled_from(FORMS))
def test_a_date_in_any_of_the_usual_forms_is_its_day(day, form):
    assert day_of(day.strftime(form), TODAY) == day.isoformat()


@pytest.mark.parametrize(
    ("written", "day"),
    [
        ("Sept. 3, 2026", "2026-09-03"),
        (" 3 nov 2026 ", "2026-11-03"),
        ("Tue, 03 Nov 2026 10:00:00 GMT", "2026-11-03"),
        ("2026年11月3日", "2026-11-03"),
        ("2 days ago", "2026-11-23"),
        ("an hour ago", "2026-11-25"),
        ("yesterday", "2026-11-24"),
        (1_762_128_000, "2025-11-03"),
        (1_762_128_000_000, "2025-11-03"),
    ],
)
def test_other_ways_to_write_a_date(written, day):
    assert day_of(written, TODAY) == day


@pytest.mark.parametrize(
    "written",
    ["Nov 31, 2026", "13/13/2026", "Marble 3, 2026", "Dec 3, 2026", "Nov 3, 1789", "soon", "", None, True, 12],
)
def test_what_is_no_day_of_the_past_is_left_out(written):
    assert day_of(written, TODAY) is None
