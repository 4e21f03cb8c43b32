"""`/debug`: the last requests, one of them as a waterfall, and what clients have used. For administrators."""
