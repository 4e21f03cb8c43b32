"""HTTP in: the process, the protocol with its clients, and the supervisor of several workers."""
