"""Pure ASGI middleware: Starlette's `BaseHTTPMiddleware` loses contextvars and hides `http.disconnect`."""
