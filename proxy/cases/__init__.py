"""Cases: conversations as files, which play again with today's proxy (docs/testing.md, docs/case.schema.json).

case_format.py   a file, checked, and the ways to play it
settings.py      the configuration of a case: its data, with the addresses and keys of the player
requests.py      what the client sends, from words that no API owns
fake_servers.py  what stands behind the proxy: upstreams, search, HTTP and MCP tools, by the case's script
  replies.py       an upstream's answer as an HTTP response
  turns.py         a model's turn in short, as bytes
  strict.py        what a strict upstream refuses
  mcp_server.py    an MCP server
  played_tools.py  tools that give recorded results
in_process.py    the transport and the clock of a proxy without sockets: its time passes as fast as nothing happens
mounts.py        starts proxies in front of the fake servers
player.py        plays a case: the only place where all of these meet
answers.py       what the client got, folded
expectations.py  what must hold of an exchange
comparison.py    what was then, and what is now
replay.py        `toolproxy replay`
"""
