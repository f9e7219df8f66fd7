/* SPDX-License-Identifier: Apache-2.0
 *
 * Match of one filter and one name.  Filters of subscriptions are matched in match_filters.c, all at once.
 */
#include "mqtt/route/filter.h"

bool mq_filter_matches(const char *filter, uint32_t filter_length, const char *name, uint32_t name_length)
{
    const char *f = filter, *f_end = filter + filter_length, *n = name, *n_end = name + name_length;
    if (name_length > 0 && *n == '$' && filter_length > 0 && (*f == '+' || *f == '#')) /* 4.7.2-1 */
        return false;
    for (;;) { /* one level of each per round */
        if (f < f_end && *f == '#')
            return true;
        if (f < f_end && *f == '+') {
            f++;
            while (n < n_end && *n != '/')
                n++;
        } else {
            while (f < f_end && n < n_end && *f != '/' && *f == *n)
                f++, n++;
        }
        if (n == n_end) /* `a/#` also matches `a` */
            return f == f_end || (f_end - f == 2 && f[0] == '/' && f[1] == '#');
        if (f == f_end || *f != '/' || *n != '/')
            return false;
        f++;
        n++;
    }
}
