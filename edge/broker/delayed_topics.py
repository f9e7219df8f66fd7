"""Names of delayed messages: $delayed/SECONDS/TOPIC.

Owns the form of the name. The broker stores such a message, and publishes it to TOPIC after SECONDS
(edge/delayed). The C core knows only where TOPIC begins: mq_topic_delayed_from() in ringbuf/c/mqtt/tenants.c.
"""

from __future__ import annotations

from edge.auth.tenant_names import is_reserved

DELAYED = "$delayed/"
DIGITS_MAX = 10


def delayed_target(name: str, delay_max_s: int) -> tuple[int, str] | None:
    """SECONDS and TOPIC of the topic name of a delayed message; None if the name has another form.

    SECONDS has 1 to 10 digits, and is at most `delay_max_s`; 0: delayed messages are not enabled. TOPIC does
    not begin with $, after the prefix of its tenant.
    """
    if not delay_max_s or not name.startswith(DELAYED):
        return None
    digits, _, topic = name[len(DELAYED) :].partition("/")
    if is_reserved(topic) or len(digits) > DIGITS_MAX:
        return None
    if not (digits.isascii() and digits.isdigit()) or int(digits) > delay_max_s:
        return None
    return int(digits), topic
