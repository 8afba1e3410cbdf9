/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-terminal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "proto/util/err.h"
#include "weightctl/output.h"
#include "weightctl/top-screen.h"

enum { SCREEN_BYTES = 64 * 1024 };

/* xterm's control sequences, which every terminal of a Linux machine knows. */
static const char enter[] =
	"\033[?1049h\033[?25l\033[?7l"; /* alternate screen, no cursor, no wrap */
static const char leave[] = "\033[?7h\033[?25h\033[?1049l";
static const char home[] = "\033[H";
static const char end_of_line[] = "\033[K";
static const char end_of_screen[] = "\033[J";
static const char *const styles[] = {
	[TOP_SCREEN_PLAIN] = "",
	[TOP_SCREEN_HEAD] = "\033[1m",
	[TOP_SCREEN_SELECTED] = "\033[7m",
};
static const char plain[] = "\033[0m";

int top_terminal_enter(struct top_terminal *t, struct err *ret_err)
{
	/* A picture is written at once, not line by line. */
	setvbuf(stdout, NULL, _IOFBF, SCREEN_BYTES);
	t->has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->was) == 0;
	if (t->has_keys) {
		struct termios raw = t->was;

		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* signals stay the terminal's */
		raw.c_cc[VMIN] = 1;
		raw.c_cc[VTIME] = 0;
		if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0)
			return err_set(ret_err, errno, "the terminal: %s", strerror(errno));
	}
	t->is_entered = true;
	fputs(enter, stdout);
	return output_flush(ret_err);
}

void top_terminal_leave(struct top_terminal *t)
{
	if (!t->is_entered)
		return;
	t->is_entered = false;
	fputs(leave, stdout);
	fflush(stdout);
	if (t->has_keys)
		(void)tcsetattr(STDIN_FILENO, TCSADRAIN, &t->was);
}

void top_terminal_get_size(uint32_t *ret_width, uint32_t *ret_height)
{
	struct winsize size = {0};

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
		size = (struct winsize){0};
	*ret_width = size.ws_col ? size.ws_col : 80;
	*ret_height = size.ws_row ? size.ws_row : 24;
}

int top_terminal_show(const struct top_screen *s, struct err *ret_err)
{
	uint32_t width;
	uint32_t height;

	top_terminal_get_size(&width, &height);
	fputs(home, stdout);
	/* Erased before it is written: behind a line as wide as the screen the cursor is on its
	 * last character. And no newline behind the last, which would scroll a screen that is full.
	 */
	for (uint32_t i = 0; i < s->n_lines; i++) {
		const struct top_screen_line *line = &s->lines[i];

		printf("%s%s%s%s%s", i ? "\r\n" : "", end_of_line, styles[line->style], line->text,
			line->style ? plain : "");
	}
	if (s->n_lines < height)
		printf("%s%s", s->n_lines ? "\r\n" : "", end_of_screen);
	return output_flush(ret_err);
}

enum top_terminal_key top_terminal_parse_key(const char *bytes, uint32_t n, uint32_t *ret_n_taken)
{
	*ret_n_taken = 1;
	switch (bytes[0]) {
	case 'q':
	case 'Q': return TOP_TERMINAL_QUIT;
	case 'k': return TOP_TERMINAL_UP;
	case 'j': return TOP_TERMINAL_DOWN;
	case '\033': break;
	default: return TOP_TERMINAL_NONE;
	}
	if (n < 3 || (bytes[1] != '[' && bytes[1] != 'O')) /* normal and application mode */
		return TOP_TERMINAL_NONE;
	*ret_n_taken = 3;
	if (bytes[2] == 'A')
		return TOP_TERMINAL_UP;
	if (bytes[2] == 'B')
		return TOP_TERMINAL_DOWN;
	return TOP_TERMINAL_NONE;
}
