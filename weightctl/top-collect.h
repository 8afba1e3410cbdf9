/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_TOP_COLLECT_H
#define WEIGHTCTL_TOP_COLLECT_H

/*
 * Keeps a sample: asks weightd and every worker that it names, or one worker, and takes what they
 * answer when they do. No call waits for anybody. One thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightctl/top-sample.h"

struct err;

struct top_collect {
	struct top_sample sample;
	struct top_reader *weightd;
	int wake_fd; /* readable: there is something to take */
};

/* worker NULL: the workers are those that weightd names. A path NULL: the default. */
int must_check top_collect_init(struct top_collect *c, bool asks_weightd, const char *weightd,
	const char *worker, struct err *ret_err);

/* Of those that are being asked nobody is waited for. */
void top_collect_fini(struct top_collect *c);

/* Everybody who is not being asked already. */
void top_collect_ask(struct top_collect *c, uint64_t now_ns);

/* What has been answered; workers that are new are asked. -ENOMEM, or a thread that cannot start.
 */
int must_check top_collect_take(struct top_collect *c, uint64_t now_ns, struct err *ret_err);

/* Nobody has an answer to give but those who are silent. */
bool top_collect_is_complete(const struct top_collect *c, uint64_t now_ns);

#endif
