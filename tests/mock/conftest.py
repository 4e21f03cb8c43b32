# The fixtures are those of the package; here they are found also where it is not installed.
from proxy.mock.plugin import _toolproxy_mock_server, toolproxy_mock  # noqa: F401
