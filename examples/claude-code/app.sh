# Claude Code with the proxy's search: one command sets up everything. Run `npm ci` in this folder first, or have `claude` on the PATH.
export PATH="$PATH:$PWD/node_modules/.bin"
exec "${PYTHON:-python3}" -m proxy run claude --config config.yaml -- -p "Who invented the bicycle? Search the web."
