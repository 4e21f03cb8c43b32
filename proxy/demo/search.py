"""A search in Serper's shape with results of its own, so that the demo's tool is the real one."""

from proxy.loop.chat import Json

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


def answer(request: Json) -> Json:
    """What `POST /search` answers."""
    query = str(request.get("q", ""))
    words = {word.strip(".,?!").lower() for word in query.split()}
    found = sorted(_PAGES, key=lambda page: -len(words & set(page["words"])))
    results = [
        {key: value for key, value in page.items() if key != "words"} for page in found if words & set(page["words"])
    ]
    return {"searchParameters": {"q": query, "type": "search"}, "organic": results[: int(request.get("num", 10))]}
