"""`toolproxy check --probe`: whether the servers of the configuration can be reached."""

import httpx

from proxy.config import UpstreamConfig

_PATIENCE = 5.0


def reach(upstream: UpstreamConfig) -> str:
    """One word on an upstream's server: any HTTP answer at all means that it can be reached. No key is sent."""
    try:
        with httpx.Client(timeout=_PATIENCE, trust_env=False) as client:
            response = client.get(upstream.base_url)
    except httpx.HTTPError as exc:
        return f"not reachable ({type(exc).__name__})"
    return f"reachable (HTTP {response.status_code})"
