/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ENGINE_TUNER_H
#define TESTS_UNIT_ENGINE_TUNER_H

/* What the engine calls of workerd/tuner.h: for tests/unit/engine-bench.h alone. */
#include "proto/util/err.h"
#include "workerd/tuner.h"

#include <errno.h>

/* Tuning needs a device. */
int tuner_begin(struct engine *e, struct message *m, struct err *ret_err)
{
	(void)e;
	(void)m;
	return err_set(ret_err, ENOTSUP, "nothing to tune here");
}

void tuner_end(struct engine *e, uint64_t client)
{
	(void)e;
	(void)client;
}

void tuner_attend(struct engine *e)
{
	(void)e;
}

bool tuner_is_due(const struct engine *e)
{
	(void)e;
	return false;
}

void tuner_stop(struct engine *e, const char *why)
{
	(void)e;
	(void)why;
}

#endif
