"""Small tools without a word of the proxy's: deadlines, a circuit breaker, a second thread, a terminal's colours."""
