/* SPDX-License-Identifier: Apache-2.0
 *
 * Subscriptions of all sessions by filter.  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_SUBSCRIPTIONS_H
#define BRIM_MQTT_SUBSCRIPTIONS_H

#include "mqtt/route/trie.h"
#include "mqtt/slab.h"

typedef struct mq_subscription { /* its number: index + 1 */
    mq_item item;
    uint32_t next, previous; /* of the same filter: numbers; 0: none */
    mq_node *filter;
    uint64_t session; /* handle, perhaps of a session that has ended */
    uint64_t options; /* MQ_OPTION_* in the lower eight bits; Subscription Identifier above, 0: none */
} mq_subscription;

#define MQ_PLAIN_FILTERS_MAX 512u /* of a SUBSCRIBE that is served in one call */

/* Add a subscription, or replace its options.  False: no memory. */
bool mq_subscription_add(mq_engine *engine, const char *filter, uint32_t length, uint64_t session,
                         uint64_t options);
bool mq_subscription_remove(mq_engine *engine, const char *filter, uint32_t length, uint64_t session);
/* The subscription of a session in a filter; NULL: none */
mq_subscription *mq_subscription_find(const mq_engine *engine, const mq_node *filter, uint64_t session);
void mq_subscriptions_free(mq_engine *engine);

#endif
