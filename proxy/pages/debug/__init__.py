"""`/debug`: the last requests, each as a waterfall, and the use of each client. For administrators."""
