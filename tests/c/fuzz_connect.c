/* SPDX-License-Identifier: Apache-2.0
 *
 * A CONNECT packet through connect.c, and each shorter part of it.  For libFuzzer.
 *
 *   input   the packet
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/in/connect.h"
#include "must.h"

/* Read the text, for the sanitizers.  Returns its bytes in the packet, with its length. */
static size_t read_text(const mq_text *text, bool is_present)
{
    must((text->at != NULL) == is_present, "a text is present if its flag is set");
    volatile uint8_t last = 0;
    for (uint32_t i = 0; i < text->length; i++)
        last = text->at[i];
    return is_present ? 2 + text->length + 0 * last : 0;
}

static size_t read_texts(const mq_connect *connect)
{
    bool will = connect->flags & MQ_CONNECT_WILL;
    return read_text(&connect->client_id, true) + read_text(&connect->will_topic, will) +
           read_text(&connect->will_payload, will) +
           read_text(&connect->username, connect->flags & MQ_CONNECT_USERNAME) +
           read_text(&connect->password, connect->flags & MQ_CONNECT_PASSWORD);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *packet = malloc(size);
    if (size > 0)
        memcpy(packet, data, size);
    mq_connect connect;
    if (mq_connect_decode(packet, (uint32_t)size, &connect)) {
        must(connect.version == 4 || connect.version == 5, "the version is known");
        must(connect.version == 5 || connect.present == 0, "only MQTT 5 has properties");
        size_t head = 10 + 2 + (size > 129);
        must(read_texts(&connect) + head <= size, "the texts fit in the packet");
        must(connect.version == 5 || read_texts(&connect) + head == size, "a text ends the packet");
        uint8_t *part = malloc(size - 1);
        memcpy(part, packet, size - 1);
        must(!mq_connect_decode(part, (uint32_t)size - 1, &connect), "a cut packet is invalid");
        free(part);
    }
    free(packet);
    return 0;
}
