"""The docker SDK's HTTP adapter, which limits only the first answer of streams without a time limit."""

from __future__ import annotations

from typing import Any

from docker.transport.unixconn import UnixHTTPAdapter


class EngineAdapter(UnixHTTPAdapter):
    """Requests to one engine."""

    def send(self, request: Any, *args: Any, **more: Any) -> Any:
        """Send a request. Without a time limit, only the first answer is limited, not the following stream."""
        if more.get("timeout") is not None:
            return super().send(request, *args, **more)
        response = super().send(request, *args, **{**more, "timeout": self.timeout})
        stream: Any = response.raw
        stream._fp.fp.raw._sock.settimeout(None)  # the way the SDK itself accesses it
        return response
