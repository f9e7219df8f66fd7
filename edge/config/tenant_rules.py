"""Rules of tenants: combinations of valid values in [[tenant]] that are not allowed.

Called by edge/config/setting_rules.py, in the same form.
"""

from __future__ import annotations

from edge.config.schema import Config
from edge.config.setting_reader import Problems, shown
from edge.config.tenant import TENANTS_MAX


def tenants_are_apart(config: Config, problems: Problems) -> None:
    """A user or certificate belongs to one tenant; tenants are at most 254."""
    if len(config.tenant) > TENANTS_MAX:
        text = f"{len(config.tenant)} tenants are above the limit, {TENANTS_MAX}; remove some"
        problems.add(("tenant", TENANTS_MAX), text)
    for key in ("users", "certificates"):
        by_pattern: dict[str, int] = {}
        for index, tenant in enumerate(config.tenant):
            if problems.blames(("tenant", index, key)):
                continue
            for number, pattern in enumerate(getattr(tenant, key)):
                owner = by_pattern.setdefault(pattern, index)
                if owner != index:
                    _report(problems, (index, key, number), pattern, pattern, owner)
        _compare_beginnings(config, key, by_pattern, problems)


def _compare_beginnings(config: Config, key: str, by_pattern: dict[str, int], problems: Problems) -> None:
    """Compare each pattern with * with all others: few patterns have it."""
    for beginning, owner in by_pattern.items():
        if not beginning.endswith("*"):
            continue
        for pattern, index in by_pattern.items():
            if index != owner and pattern.startswith(beginning[:-1]):
                number = getattr(config.tenant[index], key).index(pattern)
                _report(problems, (index, key, number), pattern, beginning, owner)


def _report(problems: Problems, place: tuple[int, str, int], pattern: str, other: str, owner: int) -> None:
    text = f"{shown(pattern)} has names of {shown(other)} of tenant[{owner}]; give each name one tenant"
    problems.add(("tenant", *place), text)


def listeners_have_tenants(config: Config, problems: Problems) -> None:
    """Listeners name existing tenants."""
    known = {tenant.name for tenant in config.tenant if tenant.name}
    for index, listener in enumerate(config.listener):
        if listener.tenant and listener.tenant not in known:
            names = ", ".join(sorted(known)) or "none"
            text = f"there is no tenant {shown(listener.tenant)}; the tenants are {names}; add a [[tenant]]"
            problems.add(("listener", index, "tenant"), text)
