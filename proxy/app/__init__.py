"""The composition root: the only place that names concrete adapters.

application   the ASGI application: hands each request to the configuration in force, and reloads
generation    the application of one configuration, kept until its last request has ended
process       what lives as long as the process, under every configuration
routes        the paths, and their endpoints
adapters      the tools and the HTTP clients that the entries of a configuration ask for
"""

from proxy.app.adapters import SystemClock, http_client_for, origins_of, tool_client
from proxy.app.application import Application, create_app

__all__ = ["Application", "SystemClock", "create_app", "http_client_for", "origins_of", "tool_client"]
