/* SPDX-License-Identifier: Apache-2.0
 *
 * Packet identifiers received with QoS 2 and not yet freed by PUBREL: a PUBLISH with one of them is a
 * repeated message, which is not stored again [MQTT-4.3.3-10].
 *
 * Most devices have few identifiers in use; these are in the session.  With more, the session gets a bit for
 * each of the 65535 identifiers, as long as one of them is in use.  publish.c enforces the Receive Maximum.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define RECEIVED_BYTES 8192u

static bool few_to_bits(mq_session *session)
{
    session->received = calloc(1, RECEIVED_BYTES);
    if (session->received == NULL)
        return false;
    for (uint32_t i = 0; i < MQ_RECEIVED_FEW; i++)
        session->received[session->received_few[i] >> 3] |= (uint8_t)(1u << (session->received_few[i] & 7));
    return true;
}

/* Index of the identifier; MQ_RECEIVED_FEW: not found. */
static uint32_t few_find(const mq_session *session, uint16_t identifier)
{
    uint32_t few = session->received_count < MQ_RECEIVED_FEW ? session->received_count : MQ_RECEIVED_FEW;
    for (uint32_t i = 0; i < few; i++)
        if (session->received_few[i] == identifier)
            return i;
    return MQ_RECEIVED_FEW;
}

bool mq_received_mark(mq_session *session, uint16_t identifier)
{
    if (mq_received_has(session, identifier))
        return true;
    if (session->received == NULL && session->received_count < MQ_RECEIVED_FEW) {
        session->received_few[session->received_count++] = identifier;
        return true;
    }
    if (session->received == NULL && !few_to_bits(session))
        return false;
    session->received[identifier >> 3] |= (uint8_t)(1u << (identifier & 7));
    session->received_count++;
    return true;
}

bool mq_received_has(const mq_session *session, uint16_t identifier)
{
    if (session->received == NULL)
        return few_find(session, identifier) < MQ_RECEIVED_FEW;
    return session->received[identifier >> 3] >> (identifier & 7) & 1;
}

bool mq_received_free(mq_session *session, uint16_t identifier)
{
    if (!mq_received_has(session, identifier))
        return false;
    mq_receipt_drop(session, identifier);
    uint32_t at = few_find(session, identifier);
    session->received_count--;
    if (session->received == NULL) {
        session->received_few[at] = session->received_few[session->received_count];
        return true;
    }
    session->received[identifier >> 3] &= (uint8_t)~(1u << (identifier & 7));
    if (session->received_count == 0) {
        free(session->received);
        session->received = NULL;
    }
    return true;
}
