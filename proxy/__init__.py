"""An OpenAI-compatible reverse proxy that runs tools transparently."""

__version__ = "0.1.0"
