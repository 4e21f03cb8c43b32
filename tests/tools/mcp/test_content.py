import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents, ToolAnnotations
from mcp_types import Tool as ListedTool

from proxy.tools.kinds.mcp.content import MOST_CHARACTERS, is_repeatable, output_of, tool_of
from tests import hostile


async def run(_):
    raise AssertionError


def made(*, prefix="wiki_", **fields):
    listed = ListedTool(**{"name": "t", "input_schema": {"type": "object"}, **fields})
    return tool_of(listed, prefix=prefix, origin="mcp", run=run)


def result(*content, **fields):
    return CallToolResult(content=list(content), **fields)


def text(words):
    return TextContent(text=words)


@pytest.mark.parametrize(
    ("name", "prefix", "becomes"),
    [
        ("search", "wiki_", "wiki_search"),
        ("search", "", "search"),
        ("pages/search.all", "wiki_", "wiki_pages_search_all"),
        ("søg efter", "", "s_g_efter"),
        ("x" * 80, "wiki_", "wiki_" + "x" * 59),
    ],
)
def test_names_are_made_of_what_a_function_name_may_have(name, prefix, becomes):
    assert made(name=name, prefix=prefix).name == becomes


def test_a_schema_is_completed_to_one_of_an_object():
    assert made(input_schema={}).parameters == {"type": "object", "properties": {}}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert made(input_schema=schema).parameters == schema


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": ["object", "null"]}])
def test_a_schema_of_something_else_is_refused(schema):
    with pytest.raises(ValueError, match="not one of an object"):
        made(input_schema=schema)


def test_a_description_is_found_where_the_server_put_it_and_is_of_bounded_length():
    assert made(title="A title").description == "A title"
    assert made(annotations=ToolAnnotations(title="A hint")).description == "A hint"
    assert len(made(description="x" * 10_000).description) == 2048
    assert made().description == ""


def test_invisible_characters_are_taken_out_of_descriptions_and_nothing_else_of_a_schema_is_changed():
    hidden = "seen\u200b \U000e0041\U000e0042\u202ethis"
    schema = {
        "title": hidden,
        "properties": {
            "default": {"type": "string", "description": hidden, "default": hidden, "enum": [hidden, "b"]},
            "list": {"items": [{"description": hidden}], "const": {"description": hidden}},
            "title": {"anyOf": [{"$comment": hidden}, True]},
        },
        "$defs": {"description": {"description": hidden}},
    }
    tool = made(description=hidden, input_schema=schema)
    assert tool.description == "seen this"
    properties = tool.parameters["properties"]
    assert tool.parameters["title"] == tool.parameters["$defs"]["description"]["description"] == "seen this"
    assert properties["default"] == {**schema["properties"]["default"], "description": "seen this"}
    assert properties["list"]["items"] == [{"description": "seen this"}]
    assert properties["list"]["const"] == {"description": hidden}
    assert properties["title"] == {"anyOf": [{"$comment": "seen this"}, True]}


@pytest.mark.parametrize(
    ("hints", "eager", "repeatable"),
    [
        (None, False, False),
        (ToolAnnotations(read_only_hint=True), True, True),
        (ToolAnnotations(read_only_hint=False), False, False),
        (ToolAnnotations(destructive_hint=True), False, False),
        (ToolAnnotations(destructive_hint=False), False, False),
        (ToolAnnotations(idempotent_hint=True), False, True),
    ],
)
def test_only_a_tool_that_says_that_it_reads_starts_early_and_only_one_that_may_run_twice_is_repeated(
    hints, eager, repeatable
):
    assert made(annotations=hints).eager == eager
    assert is_repeatable(ListedTool(name="t", input_schema={}, annotations=hints)) == repeatable


def test_structured_content_speaks_where_there_are_no_words():
    link = ResourceLink(uri="file:///etc/motd", name="motd")
    assert output_of(result(structured_content={"n": 1})).text == '{"n":1}'
    assert output_of(result(text(" "), link, structured_content=[1])).text == "[1]\n\n \n\nmotd: file:///etc/motd"
    assert output_of(result(text("one"), structured_content={"n": 1})).text == "one"
    page = EmbeddedResource(resource=TextResourceContents(uri="wiki://a", text="a page"))
    assert output_of(result(page, structured_content={"n": 1})).text == "a page"
    assert output_of(result(structured_content={"n": 2**70})).text == f"{{'n': {2**70}}}"


def test_nothing_is_said_to_be_nothing():
    assert output_of(result()).text == output_of(result(text(""))).text == "(nothing)"


def test_links_to_web_pages_are_sources_and_others_are_not():
    links = (ResourceLink(uri="https://a.example/", name="a"), ResourceLink(uri="file:///a", name="b"))
    assert output_of(result(*links)).sources == {"https://a.example/": "a"}


def test_no_more_is_joined_than_is_enough():
    half = MOST_CHARACTERS // 2
    joined = output_of(result(text("x" * half), text("y" * half), text("z"))).text
    assert joined == ("x" * half + "\n\n" + "y" * half)[:MOST_CHARACTERS]
    assert output_of(result(text("x" * 2 * MOST_CHARACTERS))).text == "x" * MOST_CHARACTERS


@given(
    st.lists(
        st.one_of(
            st.builds(TextContent, text=hostile.texts),
            st.builds(ResourceLink, uri=hostile.texts | st.just("https://a.example/"), name=hostile.texts),
            st.builds(
                EmbeddedResource, resource=st.builds(TextResourceContents, uri=hostile.texts, text=hostile.texts)
            ),
        ),
        max_size=4,
    ),
    hostile.json_values,
)
def test_any_result_is_text_and_its_sources_are_web_pages(content, structured):
    structured = structured if isinstance(structured, dict) else None
    output = output_of(CallToolResult(content=content, structured_content=structured))
    assert 0 < len(output.text) <= MOST_CHARACTERS + 100
    assert all(url.startswith(("http://", "https://")) for url in output.sources)


@given(hostile.texts.filter(len), hostile.mutated(st.just({"type": "object", "properties": {"q": {"type": "string"}}})))
def test_any_tool_of_a_server_is_one_of_ours_or_refused(name, schema):
    if isinstance(schema, dict) and (tool := hostile.outcome(ValueError, lambda: made(name=name, input_schema=schema))):
        assert isinstance(tool, ValueError) or re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name)
