/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/notify.h"

void notify_ready(void)
{
}

void notify_stopping(void)
{
}
