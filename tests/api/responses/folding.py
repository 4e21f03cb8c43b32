"""Events back into items, by what the deltas say alone; every check that a reader of them can make is made."""

import copy


def fold(events):
    """The items that the events build. Fails where an event does not fit those before it."""
    folded = _Folded()
    for event in events:
        folded.take(event)
    assert folded.open == set()
    return [folded.items[at] for at in sorted(folded.items)]


class _Folded:
    def __init__(self):
        self.items = {}
        self.open = set()

    def take(self, event):
        kind = event["type"].removeprefix("response.")
        at = event["output_index"]
        if kind == "output_item.added":
            assert at == len(self.items)
            self.items[at] = copy.deepcopy(event["item"])
            self.open.add(at)
            return
        assert at in self.open
        item = self.items[at]
        if kind == "output_item.done":
            self.done(item, event["item"])
            self.items[at] = copy.deepcopy(event["item"])
            self.open.remove(at)
            return
        assert event["item_id"] == item["id"]
        getattr(self, kind.replace(".", "_"), lambda *_: None)(item, event)

    def done(self, item, final):
        """The final item says nothing that the deltas have not said, but for what has no delta."""
        no_delta = {"status", "encrypted_content", "action", "error", "outputs"}
        if item["type"] == "tool_search_call":
            no_delta.add("arguments")
        assert {key: value for key, value in item.items() if key not in no_delta} == {
            key: value for key, value in final.items() if key not in no_delta
        }

    def content_part_added(self, item, event):
        assert event["content_index"] == len(item["content"])
        item["content"].append(copy.deepcopy(event["part"]))

    def content_part_done(self, item, event):
        assert item["content"][event["content_index"]] == event["part"]

    def output_text_delta(self, item, event):
        part = item["content"][event["content_index"]]
        part["text"] += event["delta"]
        part["logprobs"] += event["logprobs"]

    def output_text_done(self, item, event):
        assert item["content"][event["content_index"]]["text"] == event["text"]

    def output_text_annotation_added(self, item, event):
        annotations = item["content"][event["content_index"]]["annotations"]
        assert event["annotation_index"] == len(annotations)
        annotations.append(event["annotation"])

    def refusal_delta(self, item, event):
        item["content"][event["content_index"]]["refusal"] += event["delta"]

    def refusal_done(self, item, event):
        assert item["content"][event["content_index"]]["refusal"] == event["refusal"]

    def reasoning_text_delta(self, item, event):
        item["content"][event["content_index"]]["text"] += event["delta"]

    def reasoning_text_done(self, item, event):
        assert item["content"][event["content_index"]]["text"] == event["text"]

    def reasoning_summary_part_added(self, item, event):
        assert event["summary_index"] == len(item["summary"])
        item["summary"].append(copy.deepcopy(event["part"]))

    def reasoning_summary_text_delta(self, item, event):
        item["summary"][event["summary_index"]]["text"] += event["delta"]

    def reasoning_summary_part_done(self, item, event):
        assert item["summary"][event["summary_index"]] == event["part"]

    def function_call_arguments_delta(self, item, event):
        item["arguments"] += event["delta"]

    def function_call_arguments_done(self, item, event):
        assert item["arguments"] == event["arguments"]

    def custom_tool_call_input_delta(self, item, event):
        item["input"] += event["delta"]

    def mcp_call_arguments_delta(self, item, event):
        item["arguments"] += event["delta"]

    def code_interpreter_call_code_delta(self, item, event):
        item["code"] += event["delta"]

    def code_interpreter_call_code_done(self, item, event):
        assert item["code"] == event["code"]
