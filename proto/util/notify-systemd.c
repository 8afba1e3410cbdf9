/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/notify.h"

#include <systemd/sd-daemon.h>

void notify_ready(void)
{
	sd_notify(0, "READY=1");
}

void notify_stopping(void)
{
	sd_notify(0, "STOPPING=1");
}
