/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/util/err.h"
#include "tests/case.h"

/* As workerd/client.h makes them: of users 7 and 8, and of a connection that is nobody's. */
static const uint64_t seven = 1ull << 32 | 7, eight = 1ull << 32 | 8, nobody = 1ull << 63 | 7;

static char dir[64];

static struct store *open_store(void)
{
	struct store *s = NULL;
	struct err e = ERR_NULL;

	strcpy(dir, "/tmp/weightd-store-XXXXXX");
	assert_non_null(mkdtemp(dir));
	if (store_new(dir, &e, &s))
		fail_msg("%s", e.text);
	return s;
}

static void end_store(struct store *s)
{
	char command[128];

	store_free(s);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

static void save(struct store *s, uint64_t scope, const char *name, const char *text)
{
	struct err e = ERR_NULL;
	int fd = -1;

	if (store_create(s, scope, name, &e, &fd))
		fail_msg("%s", e.text);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	if (store_commit(s, scope, name, &e))
		fail_msg("%s", e.text);
}

static void expect(struct store *s, uint64_t scope, const char *name, const char *text)
{
	struct err e = ERR_NULL;
	uint64_t n_bytes = 0;
	char found[64] = "";
	int fd = -1;

	if (store_open(s, scope, name, &e, &fd, &n_bytes))
		fail_msg("%s", e.text);
	assert_int_equal(n_bytes, strlen(text));
	assert_int_equal(read(fd, found, sizeof(found)), n_bytes);
	assert_string_equal(found, text);
	close(fd);
}

static void path_of(const char *name, char ret[256])
{
	snprintf(ret, 256, "%s/%s", dir, name);
}

static void keeps_files_of_each_user(void **state)
{
	struct store *s = open_store();
	struct err e = ERR_NULL;
	struct stat st;
	char path[256];
	uint64_t n_bytes;
	int fd = -1;

	(void)state;
	save(s, seven, "a", "first");
	save(s, seven, "a", "second");
	save(s, eight, "a", "another's");
	expect(s, seven, "a", "second");
	expect(s, eight, "a", "another's");
	assert_int_equal(store_open(s, seven, "b", &e, &fd, &n_bytes), -ENOENT);
	assert_string_equal(e.text, "session file: b: there is none");
	assert_int_equal(store_open(s, 1ull << 32 | 9, "a", &e, &fd, &n_bytes), -ENOENT);
	assert_int_equal(store_open(s, nobody, "a", &e, &fd, &n_bytes), -EACCES);
	assert_int_equal(store_create(s, nobody, "a", &e, &fd), -EACCES);
	assert_int_equal(store_create(s, 0, "a", &e, &fd), -EACCES);
	path_of("uid-7", path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	path_of("uid-7/a", path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	end_store(s);
}

/* Until it is whole, what had the name before is there; what is given up leaves nothing. */
static void shows_whole_files_alone(void **state)
{
	struct store *s = open_store();
	struct err e = ERR_NULL;
	char path[256];
	int fd = -1;

	(void)state;
	save(s, seven, "a", "first");
	assert_int_equal(store_create(s, seven, "a", &e, &fd), 0);
	assert_int_equal(write(fd, "hal", 3), 3);
	expect(s, seven, "a", "first");
	close(fd);
	store_abandon(s, seven, "a");
	/* One that a process left behind is in nobody's way. */
	assert_int_equal(store_create(s, seven, "a", &e, &fd), 0);
	close(fd);
	save(s, seven, "a", "second");
	expect(s, seven, "a", "second");
	path_of("uid-7", path);
	DIR *d = opendir(path);
	assert_non_null(d);
	for (struct dirent *entry; (entry = readdir(d));)
		assert_true(!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
			    !strcmp(entry->d_name, "a"));
	closedir(d);
	end_store(s);
}

static void takes_names_that_are_names(void **state)
{
	static const char *const wrong[] = {"", ".", "..", ".a", "a/b", "/a", "../a", "a b", "a\n",
		"\xc3\xa4", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
	struct store *s = open_store();
	uint64_t n_bytes;
	int fd = -1;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct err e = ERR_NULL;

		assert_int_equal(store_create(s, seven, wrong[i], &e, &fd), -EINVAL);
		assert_int_equal(store_open(s, seven, wrong[i], &e, &fd, &n_bytes), -EINVAL);
		assert_int_equal(store_commit(s, seven, wrong[i], &e), -EINVAL);
		assert_true(e.text[0] != '\0');
	}
	save(s, seven, "A-b_c.0", "x");
	expect(s, seven, "A-b_c.0", "x");
	end_store(s);
}

/* What somebody put there in a file's place is not followed, and not waited for. */
static void opens_files_alone(void **state)
{
	struct store *s = open_store();
	struct err e = ERR_NULL;
	char path[256];
	uint64_t n_bytes;
	int fd = -1;

	(void)state;
	save(s, seven, "a", "x");
	path_of("uid-7/link", path);
	assert_int_equal(symlink("a", path), 0);
	assert_int_equal(store_open(s, seven, "link", &e, &fd, &n_bytes), -ELOOP);
	path_of("uid-7/pipe", path);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(store_open(s, seven, "pipe", &e, &fd, &n_bytes), -EINVAL);
	path_of("uid-7/dir", path);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(store_open(s, seven, "dir", &e, &fd, &n_bytes), -EINVAL);
	/* A user's directory that is a link leads nowhere. */
	path_of("uid-8", path);
	assert_int_equal(symlink("uid-7", path), 0);
	assert_true(store_open(s, eight, "a", &e, &fd, &n_bytes) < 0);
	struct store *none = NULL;
	assert_int_equal(store_new("/nowhere/at/all", &e, &none), -ENOENT);
	end_store(s);
	assert_null(store_free(NULL));
}

/* What somebody else can write to is not read, and nothing is put there. */
static void expect_strange(struct store *s)
{
	struct err e = ERR_NULL;
	uint64_t n_bytes = 0;
	int fd = -1;

	assert_int_equal(store_open(s, seven, "a", &e, &fd, &n_bytes), -EACCES);
	assert_non_null(strstr(e.text, "session file: uid-7: expected a directory of user "));
	assert_int_equal(store_create(s, seven, "a", &e, &fd), -EACCES);
	assert_int_equal(store_commit(s, seven, "a", &e), -EACCES);
	assert_int_equal(fd, -1);
}

static void test_strange_directory(void **state)
{
	static const mode_t modes[] = {0777, 0770, 0702};
	struct store *s = open_store();
	char path[256];

	(void)state;
	save(s, seven, "a", "text");
	path_of("uid-7", path);
	for (unsigned i = 0; i < ARRAY_SIZE(modes); i++) {
		assert_int_equal(chmod(path, modes[i]), 0);
		expect_strange(s);
	}
	assert_int_equal(chmod(path, 0700), 0);
	expect(s, seven, "a", "text");
	/* Only root can give one away. */
	if (geteuid() == 0) {
		assert_int_equal(chown(path, 65000, (gid_t)-1), 0);
		expect_strange(s);
	}
	end_store(s);
}

/* One user does not fill the disk with names, nor with what dead workers left. */
static void bounds_files(void **state)
{
	const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	struct store *s = open_store();
	struct err e = ERR_NULL;
	char name[32], path[128];
	int fd = -1;

	(void)state;
	for (int i = 0; i < STORE_MAX_FILES; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		save(s, seven, name, "x");
	}
	assert_int_equal(store_create(s, seven, "more", &e, &fd), -EDQUOT);
	assert_non_null(strstr(e.text, "this user has 256 others, the most is 256"));
	save(s, seven, "s7", "anew");
	expect(s, seven, "s7", "anew");
	save(s, eight, "more", "y");
	/* Begun by two: one is long gone, one may go on. */
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/uid-8/.t%d.99", dir, i);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		assert_int_equal(i ? 0 : futimens(fd, old), 0);
		close(fd);
	}
	save(s, eight, "again", "z");
	assert_int_equal(access(path, F_OK), 0);
	snprintf(path, sizeof(path), "%s/uid-8/.t0.99", dir);
	assert_int_equal(access(path, F_OK), -1);
	end_store(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_strange_directory),
		CASE(keeps_files_of_each_user),
		CASE(shows_whole_files_alone),
		CASE(takes_names_that_are_names),
		CASE(opens_files_alone),
		CASE(bounds_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
