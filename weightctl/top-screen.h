/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_TOP_SCREEN_H
#define WEIGHTCTL_TOP_SCREEN_H

/*
 * The picture of a sample, as lines without escapes: weightd and its devices, the workers, and the
 * sessions of one of them. Pure.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct top_sample;

struct top_screen_view {
	uint32_t width;    /* columns; 0: lines are as long as they are */
	uint32_t height;   /* lines at most; 0: all there are, and all sessions */
	uint32_t selected; /* index of a worker, whose sessions are shown; see height */
	uint64_t now_ns;   /* clock_now_ns */
};

enum top_screen_style { TOP_SCREEN_PLAIN, TOP_SCREEN_HEAD, TOP_SCREEN_SELECTED };

struct top_screen_line {
	char *text; /* owned; no control characters */
	enum top_screen_style style;
};

struct top_screen {
	uint32_t n_lines;
	struct top_screen_line *lines;
};

void top_screen_fini(struct top_screen *s);

/* -ENOMEM. */
int must_check top_screen_draw(const struct top_sample *sample, const struct top_screen_view *view,
	struct top_screen *ret_screen);

/* A static word for what top_sample_judge says. */
const char *top_screen_get_word(uint32_t state);

/* The same for an enum worker_client_session_state. */
const char *top_screen_get_session_word(uint32_t state);

#endif
