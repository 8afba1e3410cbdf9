/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_TOP_TERMINAL_H
#define WEIGHTCTL_TOP_TERMINAL_H

/*
 * The terminal of `top`: the alternate screen, without a cursor, keys as they are pressed. What is
 * entered is to be left, whatever happens. One thread.
 */
#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

#include "proto/util/cleanup.h"

struct err;
struct top_screen;

struct top_terminal {
	bool is_entered;
	bool has_keys; /* stdin is a terminal too, and was is what it was like */
	struct termios was;
};

int must_check top_terminal_enter(struct top_terminal *t, struct err *ret_err);

/* Everything as it was. Does nothing the second time. */
void top_terminal_leave(struct top_terminal *t);

/* Of stdout; 80 x 24 where it does not say. */
void top_terminal_get_size(uint32_t *ret_width, uint32_t *ret_height);

/* In place of what is there. */
int must_check top_terminal_show(const struct top_screen *s, struct err *ret_err);

enum top_terminal_key {
	TOP_TERMINAL_NONE, /* the rest of one, or one that means nothing */
	TOP_TERMINAL_QUIT,
	TOP_TERMINAL_UP,
	TOP_TERMINAL_DOWN,
};

/*
 * The key that bytes[0..n), n > 0, begin with, and how many of them it takes. A sequence that is
 * cut is none. Pure.
 */
enum top_terminal_key top_terminal_parse_key(const char *bytes, uint32_t n, uint32_t *ret_n_taken);

#endif
