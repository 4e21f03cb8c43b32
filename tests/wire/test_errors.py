from proxy.wire import errors
from proxy.wire.errors import PageNotAllowed, UpstreamRefused


def test_an_error_is_told_in_openais_envelope():
    assert errors.ModelNotFound("x").envelope() == {
        "error": {
            "message": "The model 'x' does not exist. GET /v1/models lists the models.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_each_error_has_the_status_that_makes_an_sdk_raise_its_proper_class():
    refused = errors.UpstreamRefused("no", status=422, type="t", code="c", param="p", headers={"retry-after": "1"})
    assert [
        (error.status, error.code)
        for error in (
            errors.RequestError(""),
            errors.InvalidJson(""),
            errors.InvalidApiKey(),
            errors.ModelNotAllowed("m"),
            errors.NotFound(""),
            errors.ItemNotFound("i"),
            errors.PreviousResponseNotFound("r"),
            errors.MethodNotAllowed(""),
            errors.RequestTooLarge(""),
            errors.RateLimitExceeded("", retry_after=7),
            errors.Overloaded(""),
            errors.MaxDurationExceeded(""),
            errors.UpstreamError(""),
            errors.UpstreamTimeout(""),
            errors.NoFinalAnswer(""),
            errors.InternalError("r"),
            refused,
        )
    ] == [
        (400, "invalid_request"),
        (400, "invalid_json"),
        (401, "invalid_api_key"),
        (403, "model_not_allowed"),
        (404, "not_found"),
        (404, None),
        (400, "previous_response_not_found"),
        (405, "method_not_allowed"),
        (413, "request_too_large"),
        (429, "rate_limit_exceeded"),
        (503, "overloaded"),
        (504, "max_duration_exceeded"),
        (502, "upstream_error"),
        (504, "upstream_timeout"),
        (502, "no_final_answer"),
        (500, "internal_error"),
        (422, "c"),
    ]


def test_where_a_retry_can_help_the_client_is_told_when_and_where_it_cannot_that_too():
    assert errors.Overloaded("", retry_after=3).headers == {"retry-after": "3"}
    assert errors.InvalidApiKey().headers["x-should-retry"] == "false"


def test_faults_of_the_configuration_are_one_line_each():
    assert str(errors.ConfigurationError(["a", "b"])) == "a\nb"


def test_what_a_client_is_told_to_do_next_stands_in_the_headers():
    assert errors.Stopping().headers == {"retry-after": "1", "connection": "close"}
    assert errors.UpstreamDown("up", retry_after=7).headers == {"retry-after": "7"}


def test_what_is_no_http_that_is_spoken_here_has_the_status_that_says_so():
    refused = [errors.HttpRefused(""), errors.HttpRefused("", status=501), errors.HeadersTooLarge("")]
    assert [error.status for error in refused] == [400, 501, 431]


def test_a_key_that_is_good_but_not_an_administrators_is_a_403():
    assert (errors.AdminOnly().status, errors.AdminOnly().code) == (403, "admin_only")


def test_a_refused_account_of_the_operator_is_a_502_without_the_upstreams_words():
    error = UpstreamRefused(
        "No balance on sk-1.", status=429, type="t", code="1113", param="p", operator_code="upstream_quota_exceeded"
    )
    error.blame_operator("zai")
    assert (error.status, error.code, error.param) == (502, "upstream_quota_exceeded", None)
    assert error.headers == {"x-should-retry": "false"}
    assert "No balance" not in error.message
    assert error.why == "HTTP 429: No balance on sk-1."


def test_a_refused_account_is_a_424_with_the_upstreams_words_where_whoever_calls_is_the_operator():
    error = UpstreamRefused("No balance.", status=429, type="t", code="1113", operator_code="upstream_quota_exceeded")
    error.blame_operator("zai", "Set ZAI_BASE_URL.", source="ZAI_API_KEY")
    assert (error.status, error.code, error.headers) == (424, "upstream_quota_exceeded", {"x-should-retry": "false"})
    assert error.message == (
        "The upstream 'zai' refuses the key or the account of ZAI_API_KEY: HTTP 429: No balance. Set ZAI_BASE_URL. "
        "To try the key: toolproxy check --probe"
    )


def test_a_refusal_of_the_request_is_not_blamed_on_the_operator():
    error = UpstreamRefused("No such model.", status=404, type="t", code="model_not_found")
    error.blame_operator("zai")
    assert (error.status, error.code, error.message) == (404, "model_not_found", "No such model.")


def test_a_page_that_may_not_call_is_told_so():
    error = PageNotAllowed("https://a.example")
    assert (error.status, error.code) == (403, "origin_not_allowed")
    assert "'https://a.example'" in error.message


def test_a_client_is_told_when_the_refused_account_may_be_tried_again():
    error = UpstreamRefused("No.", status=429, type="t", operator_code="upstream_quota_exceeded", retry_after=30)
    error.blame_operator("zai")
    assert error.headers == {"x-should-retry": "false", "retry-after": "30"}


def test_a_case_that_is_too_large_is_refused_with_both_sizes():
    error = errors.CaseTooLarge(2_000_000, 1_000_000)
    assert (error.status, error.size) == (413, 2_000_000)
    assert error.message == "The case of this request has 2,000,000 bytes, and at most 1,000,000 are permitted."


def test_a_faulty_configuration_is_told_with_a_line_for_each_fault():
    error = errors.ConfigurationError(["a: no", "b: no"])
    assert (str(error), error.faults) == ("a: no\nb: no", ("a: no", "b: no"))


def test_the_words_of_an_upstream_are_content_in_the_event_of_an_error():
    refused = UpstreamRefused("Your text: Hi", status=400, type="t", code="a code of several words")
    refused.upstream_status, refused.upstream_code = 400, "bad"
    assert errors.fault_of(refused) == {
        "code": "upstream_error",
        "status": 400,
        "why": None,
        "upstream_status": 400,
        "upstream_code": "bad",
        "content": {"upstream_message": "Your text: Hi"},
    }
    assert errors.fault_of(errors.UpstreamError("x", code="a.b-c"))["content"] is None
    assert errors.logged_code(None) is None
