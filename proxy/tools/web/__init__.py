"""Reading web pages: the client, its guard against private addresses, and the text of a page."""
