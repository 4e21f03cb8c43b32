"""Small tools without a word of the proxy's: timeouts, a circuit breaker, a second thread, a terminal's colours."""
