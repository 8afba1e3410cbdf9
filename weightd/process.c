/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/cleanup.h"

uint64_t process_get_start_ticks(int32_t pid)
{
	char path[32], text[1024], state;
	uint64_t ticks;

	if (pid <= 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%" PRId32 "/stat", pid);
	_cleanup_(cleanup_close)
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	/* The second field is the program's name in parentheses, which may hold any of both. */
	const char *at = strrchr(text, ')');
	if (!at ||
		sscanf(at + 1,
			" %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
			"%*d %" SCNu64,
			&state, &ticks) != 2 ||
		state == 'Z' || state == 'X')
		return 0;
	return ticks;
}
