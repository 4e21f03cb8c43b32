"""The script without `--script`: the conversations of `toolproxy demo`, and the search behind its tool."""

from proxy.mock.script import parse
from proxy.wire.chat import Json

DEMO = parse("""
conversations:
  - when: nanaimo
    turns:
      - reasoning: "Two separate facts: the weather and the ferry. I can look both up at the same time."
        text: I'll look both of them up.
        calls:
          - {name: web_search, arguments: {query: Nanaimo weather today, num_results: 3}}
          - {name: web_search, arguments: {query: Nanaimo Horseshoe Bay ferry status, num_results: 3}}
      - reasoning: Rain in the afternoon, ferries on schedule. I can answer.
        text: >-
          Take a jacket: Nanaimo has 11 degrees and rain from two o'clock on (https://weather.example/nanaimo).
          The ferry to Horseshoe Bay sails on schedule, with space on the 15:20 (https://ferries.example/departures).
  - turns: [{reasoning: No need to search for that., text: Hello! Nothing had to be looked up for this answer.}]
""")

# The results of the search, in Serper's shape, so that the demo runs the real search tool.
_PAGES = (
    {
        "words": {"weather", "nanaimo"},
        "title": "Nanaimo weather: 11 degrees, rain from 2 pm",
        "link": "https://weather.example/nanaimo",
        "snippet": "Today 11 degrees. Dry until early afternoon, then rain, 8 mm by the evening.",
        "date": "2 hours ago",
    },
    {
        "words": {"ferry", "nanaimo", "horseshoe", "bay"},
        "title": "Departures: Nanaimo (Departure Bay) - Horseshoe Bay",
        "link": "https://ferries.example/departures",
        "snippet": "All sailings on schedule. 15:20: 38 % full. 17:40: 91 % full.",
        "date": "10 minutes ago",
    },
)


def search_answer(request: Json) -> Json:
    """The answer to `POST /search`, in Serper's shape."""
    query = str(request.get("q", ""))
    words = {word.strip(".,?!").lower() for word in query.split()}
    found = sorted(_PAGES, key=lambda page: -len(words & set(page["words"])))
    results = [
        {key: value for key, value in page.items() if key != "words"} for page in found if words & set(page["words"])
    ]
    return {"searchParameters": {"q": query, "type": "search"}, "organic": results[: int(request.get("num", 10))]}
