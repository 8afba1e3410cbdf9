/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/mapping.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

static const char *const kind_names[MAPPING_N_KINDS] = {
	[MAPPING_NONE] = "none",
	[MAPPING_ANON] = "anon",
	[MAPPING_PRIVATE] = "private",
	[MAPPING_MEMFD] = "memfd",
	[MAPPING_TMPFS] = "tmpfs",
	[MAPPING_FILE] = "file",
};

/* A line of /proc/self/maps; proc_pid_maps(5). */
struct area {
	uint64_t begin, end;
	char rights[5];
	uint64_t offset;
	uint64_t inode;
	const char *path;
};

const char *mapping_kind_name(enum mapping_kind kind)
{
	return kind_names[kind];
}

static bool begins(const char *text, const char *with)
{
	return !strncmp(text, with, strlen(with));
}

static enum mapping_kind file_kind(const char *path)
{
	struct statfs fs;

	if (begins(path, "/memfd:"))
		return MAPPING_MEMFD;
	/* A deleted file has no path to ask by, and counts as one on a disk. */
	if (statfs(path, &fs) == 0 && fs.f_type == TMPFS_MAGIC)
		return MAPPING_TMPFS;
	return MAPPING_FILE;
}

static enum mapping_kind area_kind(const struct area *a)
{
	/* Shared anonymous memory is a deleted file of the kernel's own tmpfs. */
	if (a->inode == 0 || begins(a->path, "/dev/zero") || begins(a->path, "/anon_hugepage"))
		return MAPPING_ANON;
	if (a->rights[3] == 'p' && a->rights[1] == 'w')
		return MAPPING_PRIVATE;
	return file_kind(a->path);
}

static bool read_area(char *line, struct area *ret_area)
{
	int at = 0;

	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*x:%*x %" SCNu64 " %n",
		    &ret_area->begin, &ret_area->end, ret_area->rights, &ret_area->offset,
		    &ret_area->inode, &at) != 5)
		return false;
	ret_area->path = line + at;
	return true;
}

int mapping_find(const void *pointer, uint64_t n_bytes, struct mapping *ret_mapping)
{
	_cleanup_(cleanup_fclose)
	FILE *maps = fopen("/proc/self/maps", "re");
	_cleanup_(cleanup_free)
	char *line = NULL;
	size_t n_line = 0;
	uint64_t at = (uintptr_t)pointer, end;
	struct area a;
	struct mapping m = {.kind = MAPPING_NONE};

	if (!maps)
		return -errno;
	if (__builtin_add_overflow(at, n_bytes, &end))
		return -EINVAL;
	while (at < end && getline(&line, &n_line, maps) > 0) {
		if (!read_area(line, &a) || a.end <= at)
			continue;
		if (a.begin > at)
			break;
		enum mapping_kind kind = area_kind(&a);
		if (m.n_areas++ == 0) {
			m.kind = kind;
			m.is_writable = a.rights[1] == 'w';
			m.inode = a.inode;
			m.offset = a.offset + (at - a.begin);
			snprintf(m.path, sizeof(m.path), "%s", a.path);
		}
		m.kinds |= mapping_bit(kind, a.rights[1] == 'w');
		at = a.end;
	}
	if (at < end)
		m.kinds |= mapping_bit(MAPPING_NONE, false);
	*ret_mapping = m;
	return 0;
}

int mapping_of_fd(int fd, struct mapping *ret_mapping)
{
	char link[64];
	struct stat st;
	struct mapping m = {.kind = MAPPING_NONE};

	if (fstat(fd, &st) < 0)
		return -errno;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, m.path, sizeof(m.path) - 1);
	if (n < 0)
		return -errno;
	m.path[n] = '\0';
	m.inode = st.st_ino;
	if (S_ISREG(st.st_mode))
		m.kind = file_kind(m.path);
	*ret_mapping = m;
	return 0;
}
