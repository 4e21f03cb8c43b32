# Claude Code with the proxy's search: one command sets everything. `npm install -g @anthropic-ai/claude-code` first.
exec "${PYTHON:-python3}" -m proxy run claude --config config.yaml -- -p "Who invented the bicycle? Search the web."
