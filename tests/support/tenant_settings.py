"""Settings of a broker with the tenants a and b, a listener for each, and delayed messages."""

from tests.support.ports import free_port


def two_tenants(quota: str) -> tuple[str, int, int]:
    """The settings, with these lines as the quota of a, and the ports of a and b."""
    a, b = free_port(), free_port()
    settings = f"""
[delayed]
enabled = true
[[tenant]]
name = "a"
[tenant.quota]
{quota}
[[tenant]]
name = "b"
[[listener]]
port = {a}
tenant = "a"
[[listener]]
port = {b}
tenant = "b"
"""
    return settings, a, b
