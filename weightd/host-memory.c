/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/host-memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/cleanup.h"

uint64_t host_memory_get_free(void)
{
	char text[4096];
	unsigned long long n_kib;
	_cleanup_(cleanup_close)
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (n <= 0)
		return UINT64_MAX;
	text[n] = '\0';
	const char *at = strstr(text, "MemAvailable:");
	if (!at || sscanf(at, "MemAvailable: %llu kB", &n_kib) != 1)
		return UINT64_MAX;
	return (uint64_t)n_kib * 1024;
}
