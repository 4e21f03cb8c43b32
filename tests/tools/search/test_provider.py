"""Every shipped provider against the answers that it documents: `answers/NAME.yaml` has them."""

from datetime import date
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest
import yaml
from msgspec import convert
from msgspec.structs import replace

from proxy.app.configuration import parse
from proxy.tools.search.description import Description, description, shipped
from proxy.tools.search.faults import faults
from proxy.tools.search.provider import Provider, Refused, SearchAnswer
from proxy.tools.search.query import SearchQuery, query_of
from proxy.wire.errors import ConfigurationError
from proxy.wire.search import SearchFilters, SearchHit

TODAY = date(2026, 11, 23)
ANSWERS = {file.stem: yaml.safe_load(file.read_text()) for file in (Path(__file__).parent / "answers").glob("*.yaml")}
QUERY = SearchQuery("who won", 10)
PLAIN = {
    "url": "https://search.example/api",
    "query": {"q": "{query}", "n": "{count}"},
    "results": "/hits",
    "fields": {"url": "/u", "title": "/t", "text": "/s", "published": "/d"},
}


def provider(name, **options):
    return Provider(description(name), api_key="sk-test-key", **options)


def described(**changes):
    return Provider(convert({**PLAIN, **changes}, Description), api_key="sk-test-key")


def read(asked, status, body, headers=None, query=QUERY):
    content = body.encode() if isinstance(body, str) else orjson.dumps(body)
    return asked.read(query, status, headers or {}, content, TODAY)


def cases(kind):
    return [
        pytest.param(name, case, id=f"{name}-{number}")
        for name, answer in sorted(ANSWERS.items())
        for number, case in enumerate(answer.get(kind, ()))
    ]


def test_every_shipped_provider_has_its_documented_answers():
    assert set(shipped()) == set(ANSWERS)


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_description_has_no_fault_and_says_where_a_key_is_to_be_had(name):
    shipped_one = description(name)
    assert list(faults(shipped_one)) == []
    assert shipped_one.title
    assert shipped_one.about
    assert shipped_one.site


@pytest.mark.parametrize("name", shipped())
def test_its_documented_answer_becomes_hits(name):
    known = ANSWERS[name]
    for case in (known, *known.get("also", ())):
        found = read(provider(name), 200, case["answer"])
        found = replace(found, hits=tuple(replace(hit, address=None) for hit in found.hits))  # as they were given
        assert found == SearchAnswer(tuple(SearchHit(**{"text": "", **hit}) for hit in case["hits"]), known.get("says"))


@pytest.mark.parametrize("name", shipped())
def test_an_answer_without_results_is_nothing_found(name):
    assert read(provider(name), 200, ANSWERS[name]["empty"]).hits == ()


@pytest.mark.parametrize(("name", "case"), cases("nothing"))
def test_a_refusal_that_means_nothing_found_is_no_failure(name, case):
    assert read(provider(name), case["status"], case["body"]) == SearchAnswer(())


@pytest.mark.parametrize(("name", "case"), cases("errors"))
def test_a_documented_error_has_its_meaning_and_its_wait(name, case):
    refused = read(provider(name), case["status"], case["body"], case.get("headers"))
    assert isinstance(refused, Refused)
    assert (refused.means, refused.wait) == (case["means"], case.get("wait"))
    assert case.get("hint", "") in (refused.hint or "")


@pytest.mark.parametrize("name", shipped())
def test_an_answer_that_is_no_json_is_a_provider_that_does_not_work(name):
    assert read(provider(name), 200, "<html>a captive portal</html>") == Refused("down", 200)


@pytest.mark.parametrize("name", shipped())
def test_no_page_of_a_blocked_domain_is_a_hit(name):
    answer = orjson.loads(orjson.dumps(ANSWERS[name]["answer"]).replace(b"example.", b"blocked."))
    filters = SearchFilters(block=("blocked.com", "blocked.org", "blocked.net", "blocked.cn", "arxiv.org"))
    assert read(provider(name), 200, answer, query=SearchQuery("who won", 10, filters=filters)).hits == ()


@pytest.mark.parametrize("name", shipped())
def test_only_pages_of_allowed_domains_are_hits(name):
    query = SearchQuery("who won", 10, filters=SearchFilters(allow=("example.com",)))
    found = read(provider(name), 200, ANSWERS[name]["answer"], query=query)
    assert {hit.url for hit in found.hits} == {
        hit["url"] for hit in ANSWERS[name]["hits"] if hit["url"].startswith("https://example.com/")
    }
    assert found.answer is None


@pytest.mark.parametrize("name", shipped())
def test_the_key_goes_out_and_a_request_says_no_more_than_it_was_asked(name):
    request = provider(name).request(query_of({"query": "who won"}), TODAY)
    sent = f"{request.url} {dict(request.headers)} {request.body!r}"
    assert ("sk-test-key" in sent) != (name == "searxng")
    assert "who won" in sent or "who%20won" in sent
    assert "{" not in request.url
    assert "null" not in sent


def test_what_a_request_asks_for_is_sent_in_the_providers_words():
    query = query_of(
        {"query": "who won", "recency": "week", "country": "CA", "num_results": 3},
        SearchFilters(allow=("a.com",), block=("b.com",), city="Nanaimo", country="us", size="high"),
    )
    request = provider("tavily").request(query, TODAY)
    assert (request.method, request.url) == ("POST", "https://api.tavily.com/search")
    assert request.headers == {"authorization": "Bearer sk-test-key"}
    assert orjson.loads(request.body) == {
        "query": "who won",
        "max_results": 3,
        "time_range": "week",
        "country": "canada",
        "include_domains": ["a.com"],
        "exclude_domains": ["b.com"],
        "search_depth": "basic",
    }


@pytest.mark.parametrize("name", ["serpapi", "searchapi"])
@pytest.mark.parametrize(
    ("filters", "sent"),
    [
        (SearchFilters(city="Nanaimo", country="ca"), "location=Nanaimo%2C%20CA"),
        (SearchFilters(region="British Columbia"), "location=British%20Columbia"),
    ],
)
def test_the_place_of_the_user_is_sent_where_more_than_the_country_is_known(name, filters, sent):
    assert sent in provider(name).request(SearchQuery("x", 5, country="ca", filters=filters), TODAY).url
    other = SearchQuery("x", 5, country="ca", filters=SearchFilters(country="ca"))
    assert "location" not in provider(name).request(other, TODAY).url


def test_dates_are_counted_back_from_today_and_empty_objects_are_left_out():
    dated = orjson.loads(provider("parallel").request(SearchQuery("x", 5, recency="week"), TODAY).body)
    assert dated["advanced_settings"]["source_policy"] == {"after_date": "2026-11-16"}
    plain = orjson.loads(provider("parallel").request(SearchQuery("x", 5), TODAY).body)
    assert plain["advanced_settings"] == {"max_results": 5}


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://s.example/{country}/s?q={query}&c={country}", "https://s.example//s?q=who%20%26%20what&c="),
        ("https://s.example/s?q={query}&d={allow|join:,}", "https://s.example/s?q=who%20%26%20what&d="),
        ("https://s.example/s?q={query}&e={edition}", "https://s.example/s?q=who%20%26%20what&e=0"),
    ],
)
def test_a_placeholder_without_a_value_is_empty_in_a_url(url, sent):
    asked = described(url=url, query={}, options={"edition": 0})
    assert asked.request(SearchQuery("who & what", 5), TODAY).url == sent


def test_a_list_is_joined_in_a_url_as_anywhere_else():
    asked = described(url="https://s.example/s?q={query}&d={allow|join:,}", query={})
    filters = SearchFilters(allow=("a.example", "b.example/p"))
    sent = "https://s.example/s?q=who&d=a.example,b.example%2Fp"
    assert asked.request(SearchQuery("who", 5, filters=filters), TODAY).url == sent


def test_with_both_lists_a_provider_that_takes_one_gets_the_allowed_domains_and_twice_the_count():
    query = SearchQuery("x", 5, filters=SearchFilters(allow=("a.com",), block=("a.com/private",)))
    body = orjson.loads(provider("exa").request(query, TODAY).body)
    assert (body["includeDomains"], body["numResults"]) == (["a.com"], 10)
    assert "excludeDomains" not in body


def test_more_domains_than_a_provider_takes_are_filtered_afterwards_alone():
    query = SearchQuery("x", 5, filters=SearchFilters(allow=tuple(f"{number}.com" for number in range(21))))
    body = orjson.loads(provider("perplexity").request(query, TODAY).body)
    assert "search_domain_filter" not in body
    assert body["max_results"] == 10


def test_site_operators_are_added_where_the_query_has_room_for_them():
    filters = SearchFilters(allow=("a.com", "b.org"), block=("c.net",))
    assert "site" in provider("brave").request(SearchQuery("who won", 5, filters=filters), TODAY).url
    long = provider("brave").request(SearchQuery("word " * 48, 5, filters=filters), TODAY)
    assert "site" not in long.url


def test_a_query_that_is_too_long_is_cut_between_words():
    body = orjson.loads(provider("tavily").request(SearchQuery("seven8 " * 100, 5), TODAY).body)
    assert len(body["query"]) <= 400
    assert body["query"].endswith("seven8")


def test_without_a_key_a_keyless_provider_is_asked_in_its_own_way():
    keyless = Provider(description("you"), api_key="none").request(QUERY, TODAY)
    assert keyless.url == "https://api.you.com/v1/agents/search"
    assert dict(keyless.headers) == {}


def test_another_address_replaces_scheme_host_and_port():
    asked = Provider(description("searxng"), base_url="http://127.0.0.1:9/searx/")
    assert asked.request(QUERY, TODAY).url.startswith("http://127.0.0.1:9/searx/search?q=who%20won")


def test_the_text_of_pages_takes_the_place_of_snippets_where_it_is_asked_for():
    asked = provider("tavily", page=True)
    assert orjson.loads(asked.request(QUERY, TODAY).body)["include_raw_content"] == "markdown"
    row = {"title": "T", "url": "https://a.com/", "content": "snippet", "raw_content": "# Head\n\n\n\nBody"}
    assert read(asked, 200, {"results": [row]}).hits[0].text == "# Head\n\nBody"


def test_options_of_the_tool_replace_those_of_the_description():
    assert orjson.loads(provider("tavily", options={"depth": "advanced"}).request(QUERY, TODAY).body)[
        "search_depth"
    ] == ("advanced")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"query": {"q": "{question}"}}, "query: {question} is none of the placeholders: allow, api_key"),
        ({"query": {"q": "{query|shout}"}}, "query: there is no operator 'shout'"),
        ({"query": {"n": "{count}"}}, ": {query} must be in url, query or body"),
        ({"headers": {"x-q": "{query}"}}, "headers.x-q: {api_key} is the only placeholder that a header may have"),
        ({"results": "hits"}, "results: 'hits': a JSON pointer is empty or begins with '/'"),
        ({"url": "h.example/s"}, "url: must begin with http:// or https:// and a host"),
        ({"url": "https://{place}.h.example/s"}, "url: must begin with http:// or https:// and a host"),
        ({"keyless": {"url": "https://h:99999/s"}}, "keyless.url: has a port that is not from 1 to 65535"),
        ({"options": {"n": 2**64}}, "options: cannot be written as JSON"),
        ({"query": {"q": "{query}", "raw": b"a"}}, "query: cannot be written as JSON"),
        ({"body": {"q": "{query}"}}, "body: a GET request has no body: use query, or method: POST"),
    ],
)
def test_a_fault_in_a_description_is_named(changes, fault):
    found = [f"{where}: {why}" for where, why in faults(convert({**PLAIN, **changes}, Description))]
    assert [one for one in found if one.startswith(fault)], found


@pytest.mark.parametrize(
    ("wrong", "line", "fault"),
    [
        ("metod: GET", 12, ".metod: unknown key; known are about, answer, answer_url,"),
        ("errors: [{means: broke}]", 12, ".errors[0].means: must be one of key, quota, busy, input, empty, down"),
        (
            "errors:\n        - {status: 429, means: busy}\n        - {status: x, means: busy}",
            14,
            ".errors[1].status: must",
        ),
        ("most: {count: 0}", 12, ".most.count: must be at least 1"),
        ("page: {txt: /a}", 12, ".page.txt: unknown key; known are body, headers, query, text, whole"),
        ('headers: {x: "a\\nb"}', 12, ".headers.x: must be printable ASCII: it has to fit into a header"),
        ("method: PUT", 12, ".method: must be one of GET, POST"),
        ("options: {a: !!binary aGk=}", 12, ".options: cannot be written as JSON"),
        ("answer: [a]", 12, ".answer: must be text, not a list"),
        ("errors: [{status: 403}]", 12, ".errors[0].means: is missing"),
        ("beside: [hits]", 12, ".beside: 'hits': a JSON pointer is empty or begins with '/'"),
    ],
)
def test_a_fault_in_the_form_of_a_description_has_its_line_and_plain_words(wrong, line, fault):
    text = f"""upstreams: {{}}
models: {{}}

tools:
  web_search:
    type: search
    provider:
      url: https://search.corp.example/find
      query: {{q: "{{query}}"}}
      results: /hits
      fields: {{url: /link}}
      {wrong}
"""
    with pytest.raises(ConfigurationError) as raised:
        parse(text, {})
    (said,) = raised.value.faults
    assert said.startswith(f"config.yaml:{line}: tools.web_search.provider{fault}")


def test_an_option_that_is_no_json_is_named():
    with pytest.raises(ConfigurationError) as raised:
        parse("tools: {s: {type: search, provider: brave, api_key: k, options: {extra_snippets: !!binary aGk=}}}", {})
    [said] = raised.value.faults
    assert said.startswith("config.yaml:1: tools.s.options: cannot be written as JSON")


def test_a_description_says_where_the_results_are():
    with pytest.raises(ConfigurationError) as raised:
        parse("tools: {s: {type: search, provider: {url: 'https://h.example/{query}', fields: {url: /u}}}}", {})
    assert raised.value.faults == (
        "config.yaml:1: tools.s.provider.results: is missing: where does the answer have its results?",
    )


@pytest.mark.parametrize(
    "row",
    [
        {"t": "no URL"},
        {"u": "javascript:alert(1)"},
        {"u": "/relative"},
        {"u": "https://user:password@a.com/"},
        {"u": 7},
        {"u": None},
        {"u": "https://a.com/\nhttps://b.com/"},
        "not an object",
        None,
    ],
)
def test_a_result_without_the_address_of_a_page_is_dropped(row):
    assert read(described(), 200, {"hits": [row]}).hits == ()


@pytest.mark.parametrize("answer", [{"hits": "many"}, {"hits": {"u": "https://a.com"}}, [], {}])
def test_an_answer_without_a_list_where_the_results_stand_is_nothing_found(answer):
    assert read(described(), 200, answer).hits == ()


def test_a_note_says_what_of_a_description_may_be_wrong_where_nothing_was_found():
    elsewhere = read(described(), 200, {"ok": True, "data": {"hits": [{"u": "https://a.com"}]}})
    assert elsewhere.note == "the answer has no list at /hits; it has /ok, /data, /data/hits"
    named = read(described(), 200, {"hits": [{"link": "https://a.com", "meta": {"day": 1}}]})
    assert named.note == "no result has a page's URL at /u; the first has /link, /meta, /meta/day"
    assert read(described(), 200, {"hits": []}).note is None
    block = SearchQuery("who won", 10, filters=SearchFilters(block=("a.com",)))
    assert read(described(), 200, {"hits": [{"u": "https://a.com"}]}, query=block) == SearchAnswer(())


def test_an_answer_may_be_the_list_of_results_itself():
    assert [hit.url for hit in read(described(results=""), 200, [{"u": "https://a.com/x"}]).hits] == ["https://a.com/x"]


@pytest.mark.parametrize("answer", [7, None, "text", True])
def test_an_answer_that_is_no_document_is_a_provider_that_does_not_work(answer):
    assert read(described(), 200, orjson.dumps(answer).decode()) == Refused("down", 200)


def test_an_answer_of_too_many_values_is_no_answer():
    answer = read(described(), 200, '{"hits": [%s0]}' % ("0," * 100_000))
    assert answer == Refused("down", 200, words="its answer holds more than 100000 values")


@pytest.mark.parametrize("depth", [300, 1000])
def test_an_answer_nested_too_deep_is_no_answer(depth):
    deep = "[" * depth + "]" * depth
    asked = described(errors=[{"means": "quota", "at": "/error", "text": "credit"}])
    for answer in (f'{{"error": {deep}}}', f'{{"hits": [{{"u": "https://a.example/", "t": {deep}}}]}}'):
        found = read(asked, 200, answer)
        assert isinstance(found, Refused) or found.hits[0].url == "https://a.example/"


ABOUT_ALL = ("key", "quota", "busy", "down")
WORDED = [
    pytest.param(name, rule, id=f"{name}-{number}")
    for name in sorted(shipped())
    for number, rule in enumerate(description(name).errors)
    if rule.text and rule.means in ABOUT_ALL
]


def with_text(pointer, text):
    """An answer with a text at a pointer."""
    answer = text
    for step in reversed(pointer.partition(" or ")[0].strip("/").split("/")):
        answer = [answer] if step == "0" else {step: answer}
    return answer


@pytest.mark.parametrize(("name", "rule"), WORDED)
def test_a_query_that_a_provider_quotes_says_nothing_of_its_key_or_its_service(name, rule):
    texts = (rule.text,) if isinstance(rule.text, str) else rule.text
    status = rule.status if isinstance(rule.status, int) else 400
    for text in texts:
        answer = with_text(rule.at, f"'zz {text.upper()} zz' cannot be searched")
        for quoted in (f"zz {text} zz", f"zz {text.upper()} zz", quote(f"zz {text} zz")):
            found = read(provider(name), status, answer, query=SearchQuery(quoted, 10))
            by_status = read(provider(name), status, with_text(rule.at, "nothing of it"))
            assert getattr(found, "means", None) == getattr(by_status, "means", None)
        assert read(provider(name), status, answer).means == rule.means, "the provider's own words count"


@pytest.mark.parametrize("status", [402, 403, 429])
def test_a_time_that_is_quoted_of_a_query_is_no_reset_of_a_quota(status):
    words = "Your limit will reset at 2030-01-01 00:00:00"
    found = [read(provider("tavily"), status, {"detail": words}, query=SearchQuery(text, 10)) for text in ("x", words)]
    assert [one.reset is not None for one in found] == [status != 403, False]


def test_the_page_of_a_firewall_that_dislikes_a_query_says_nothing_of_the_key():
    page = "<!doctype html><title>Attention Required!</title>"
    assert read(provider("brave"), 403, page).means == "down"
    assert read(provider("brave"), 403, {"message": "Forbidden"}).means == "key"
