"""What clients see: endpoints and middleware, all of it plain ASGI."""
