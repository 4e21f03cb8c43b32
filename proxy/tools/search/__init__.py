"""Web search: providers as descriptions, and the tools that ask search services, serper.dev for pages as well."""
