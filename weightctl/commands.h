/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_COMMANDS_H
#define WEIGHTCTL_COMMANDS_H

/*
 * The commands, one a file. Each prints its result to stdout and returns 0; COMMANDS_USAGE when an
 * argument cannot be meant (exit status 2); -errno for what was refused or failed (exit status 1).
 * The last two with one line in ret_err, which may stay empty where -errno says it all. The number
 * of arguments has been checked.
 */
#include "proto/util/cleanup.h"

struct err;
struct options;

enum { COMMANDS_USAGE = 1 };

int must_check load_run(const struct options *o, struct err *ret_err);
int must_check unload_run(const struct options *o, struct err *ret_err);
int must_check pin_run(const struct options *o, struct err *ret_err);
int must_check pin_run_undo(const struct options *o, struct err *ret_err); /* unpin */
int must_check ls_run(const struct options *o, struct err *ret_err);
int must_check status_run(const struct options *o, struct err *ret_err);
int must_check top_run(const struct options *o, struct err *ret_err);
int must_check map_run(const struct options *o, struct err *ret_err);
int must_check ask_run(const struct options *o, struct err *ret_err);
int must_check chat_run(const struct options *o, struct err *ret_err);
int must_check complete_run(const struct options *o, struct err *ret_err);
int must_check make_model_run(const struct options *o, struct err *ret_err);
int must_check inspect_run(const struct options *o, struct err *ret_err);
int must_check tokenize_run(const struct options *o, struct err *ret_err);
int must_check detokenize_run(const struct options *o, struct err *ret_err);
int must_check verify_run(const struct options *o, struct err *ret_err);
int must_check prefix_run(const struct options *o, struct err *ret_err);
int must_check bench_run(const struct options *o, struct err *ret_err);
int must_check bench_memory_run(const struct options *o, struct err *ret_err);
int must_check tune_run(const struct options *o, struct err *ret_err);

/* The worker of a socket, NULL: the default; and one of tune's own, as bench has them. */
int must_check tune_ask(const struct options *o, const char *socket, struct err *ret_err);
int must_check bench_run_tune(const struct options *o, struct err *ret_err);

#endif
