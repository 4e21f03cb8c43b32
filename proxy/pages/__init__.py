"""Pages for people: the front page, the chat, `/debug`. Plain HTML, without anything from elsewhere."""
