"""The configuration: what may be in the file, and what keeps its secrets out of what people read."""

from proxy.config.model import Config

__all__ = ["Config"]
