"""What the proxy costs, measured beside nginx: `make bench`. Not shipped, not part of the tests."""
