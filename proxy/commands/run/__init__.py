"""`toolproxy run`: a coding agent that uses this proxy, set up and started by one command.

place      the configuration to use, and where log and state of such runs lie
companion  the proxy: one that is running already, or one of this run, which ends with the agent
claude, codex, opencode    the variables and arguments that make each agent use it; `agent` has what they share
last_words the keys that were refused during a run and what it used, said when the agent has ended
command    the order of these steps; in the end this process becomes the agent
"""
