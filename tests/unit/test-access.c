/* SPDX-License-Identifier: Apache-2.0 */
/* What --listen takes and refuses, and what a socket's policy says to whom. */
#include "weightd/access.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "weightd/pace.h"

static struct access parse(const char *text)
{
	struct access a;
	struct err e = ERR_NULL;

	if (access_parse(text, &e, &a) != 0)
		fail_msg("%s: %s", text, e.text);
	return a;
}

static void test_parse(void **state)
{
	struct access a = parse("/run/a.sock");

	(void)state;
	assert_string_equal(a.path, "/run/a.sock");
	assert_int_equal(a.mode, 0660);
	assert_false(a.is_owner);
	assert_false(a.has_control);
	assert_int_equal(a.n_models + a.n_uids + a.n_gids, 0);
	assert_true(!a.max_leases && !a.max_bytes && !a.max_requests && !a.max_connections &&
		    !a.max_uid_connections);

	a = parse("a,models=x+y-*,uids=0+1000,gids=4294967294,leases=3,bytes=2G,requests=50,"
		  "connections=8,uid-connections=4,control=yes,mode=0600");
	assert_int_equal(a.n_models, 2);
	assert_string_equal(a.models[0], "x");
	assert_string_equal(a.models[1], "y-*");
	assert_int_equal(a.n_uids, 2);
	assert_int_equal(a.uids[1], 1000);
	assert_int_equal(a.gids[0], 4294967294u);
	assert_int_equal(a.max_leases, 3);
	assert_int_equal(a.max_bytes, 2ull << 30);
	assert_int_equal(a.max_requests, 50);
	assert_int_equal(a.max_connections, 8);
	assert_int_equal(a.max_uid_connections, 4);
	assert_true(a.has_control);
	assert_int_equal(a.mode, 0600);
	assert_false(parse("a,control=no").has_control);
}

#define LONG_32 "0123456789abcdef0123456789abcdef"

static void test_parse_refuses(void **state)
{
	static const struct {
		const char *text, *refusal;
	} rows[] = {
		{"", "--listen: path: expected 1 to 107 bytes without a comma, found \"\""},
		{",models=a",
			"--listen: path: expected 1 to 107 bytes without a comma, found \"\""},
		{LONG_32 LONG_32 LONG_32 "0123456789ab", "--listen: path: expected 1 to 107"},
		{"a,", "--listen: expected PATH,OPTION=VALUE..., found the option \"\""},
		{"a,models",
			"--listen: expected PATH,OPTION=VALUE..., found the option \"models\""},
		{"a,b=c", "--listen: expected PATH,OPTION=VALUE..., found the option \"b\""},
		{"a,leases=1,leases=2", "--listen: leases: expected once, found again"},
		{"a,models=", "--listen: models: expected names or patterns of 1 to 64 of "
			      "[A-Za-z0-9._-*?[]!], found \"\""},
		{"a,models=x+", "--listen: models: expected names or patterns"},
		{"a,models=x/y", "found \"x/y\""},
		{"a,models=" LONG_32 LONG_32 "x", "--listen: models: expected names or patterns"},
		{"a,uids=", "--listen: uids: expected 0 to 4294967294, found \"\""},
		{"a,uids=root", "--listen: uids: expected 0 to 4294967294, found \"root\""},
		{"a,uids=1+4294967295", "found \"4294967295\""},
		{"a,uids=-1", "found \"-1\""},
		{"a,gids=1++2", "--listen: gids: expected 0 to 4294967294, found \"\""},
		{"a,gids=99999999999", "--listen: gids: expected 0 to 4294967294"},
		{"a,leases=0", "--listen: leases: expected 1 to 65536, found \"0\""},
		{"a,leases=65537", "--listen: leases: expected 1 to 65536, found \"65537\""},
		{"a,leases=1x", "found \"1x\""},
		{"a,bytes=0", "--listen: bytes: expected a number of bytes above 0"},
		{"a,bytes=1X", "--listen: bytes: expected a number of bytes above 0"},
		{"a,requests=1000001", "--listen: requests: expected 1 to 1000000"},
		{"a,connections=0", "--listen: connections: expected 1 to 65536, found \"0\""},
		{"a,uid-connections=", "--listen: uid-connections: expected 1 to 65536"},
		{"a,control=1", "--listen: control: expected yes or no, found \"1\""},
		{"a,mode=888", "--listen: mode: expected 0 to 777 in octal, found \"888\""},
		{"a,mode=1777", "--listen: mode: expected 0 to 777 in octal, found \"1777\""},
		{"a,mode=", "--listen: mode: expected 0 to 777 in octal, found \"\""},
	};
	struct access a = {.mode = 7};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct err e = ERR_NULL;
		if (access_parse(rows[i].text, &e, &a) != -EINVAL)
			fail_msg("\"%s\" was taken", rows[i].text);
		if (!strstr(e.text, rows[i].refusal))
			fail_msg("\"%s\": \"%s\"", rows[i].text, e.text);
	}
	assert_int_equal(a.mode, 7);
}

static void test_too_many(void **state)
{
	static const char *const options[] = {"uids", "gids", "models"};
	struct access a;

	(void)state;
	for (unsigned k = 0; k < ARRAY_SIZE(options); k++) {
		struct err e = ERR_NULL;
		char text[512];
		int n = snprintf(text, sizeof(text), "a,%s=1", options[k]);
		for (int i = 1; i < 64; i++)
			n += snprintf(text + n, sizeof(text) - (size_t)n, "+%d", i);
		assert_int_equal(access_parse(text, &e, &a), 0);
		snprintf(text + n, sizeof(text) - (size_t)n, "+7");
		assert_int_equal(access_parse(text, &e, &a), -EINVAL);
		assert_non_null(strstr(e.text, "expected at most 64"));
	}
}

static void test_shows(void **state)
{
	struct access all = parse("a"), some = parse("a,models=atlas+q-*+[xy]1"), owner;

	(void)state;
	access_init_owner(&owner, "a", 0600);
	assert_true(access_shows(NULL, "m"));
	assert_true(access_shows(&all, "m"));
	assert_true(access_shows(&owner, "m"));
	assert_false(access_hides(NULL) || access_hides(&all) || access_hides(&owner));
	assert_true(access_hides(&some));
	assert_true(access_shows(&some, "atlas"));
	assert_true(access_shows(&some, "q-"));
	assert_true(access_shows(&some, "q-.8B"));
	assert_true(access_shows(&some, "y1"));
	assert_false(access_shows(&some, "atlas2"));
	assert_false(access_shows(&some, "Atlas"));
	assert_false(access_shows(&some, "z1"));
	assert_false(access_shows(&some, ""));
}

static void test_rights(void **state)
{
	struct access no = parse("a,models=m"), yes = parse("a,models=m,control=yes"), owner;
	struct err e = ERR_NULL;

	(void)state;
	access_init_owner(&owner, "a", 0600);
	assert_int_equal(access_check_control(NULL, "Load", &e), 0);
	assert_int_equal(access_check_control(&owner, "Load", &e), 0);
	assert_int_equal(access_check_control(&yes, "Load", &e), 0);
	assert_int_equal(access_check_control(&no, "Load", &e), -EPERM);
	assert_string_equal(
		e.text, "Load: not allowed on this socket, which was made without control=yes");
	assert_int_equal(access_check_name(&yes, "Load", "m", &e), 0);
	assert_int_equal(access_check_name(&yes, "Load", "n", &e), -EPERM);
	assert_string_equal(e.text, "Load: expected a name that this socket shows, found n");
	assert_int_equal(access_check_name(&owner, "Load", "n", &e), 0);
}

static void test_who(void **state)
{
	struct access any = parse("a"), uids = parse("a,uids=0+7"), gids = parse("a,gids=5"),
		      both = parse("a,uids=7,gids=5");
	static const uint32_t groups[] = {1, 2, 5};
	const struct {
		const struct access *access;
		uint32_t uid, n_gids;
		int rc;
	} rows[] = {
		{&any, 3, 0, 0},
		{&uids, 0, 0, 0},
		{&uids, 7, 3, 0},
		{&uids, 5, 3, -EACCES},
		{&gids, 0, 2, -EACCES},
		{&gids, 9, 3, 0},
		{&both, 7, 0, 0},
		{&both, 9, 3, 0},
		{&both, 9, 2, -EACCES},
		{&both, 0, 0, -EACCES},
	};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct err e = ERR_NULL;
		int rc = access_check_peer(rows[i].access, rows[i].uid, groups, rows[i].n_gids, &e);
		if (rc != rows[i].rc)
			fail_msg("row %u: %d %s", i, rc, e.text);
		if (rows[i].uid == 9 && rc)
			assert_string_equal(e.text, "this socket is not for uid 9 and its groups");
	}
}

static void test_crowd(void **state)
{
	struct access a = parse("a,connections=8,uid-connections=4"), owner;
	const struct {
		struct access_crowd crowd;
		const char *refusal, *of_owner;
	} rows[] = {
		{{.max_all = 100, .max_listened = 50}, NULL, NULL},
		{{99, 100, 49, 50, 7, 3}, NULL, NULL},
		{{100, 100, 0, 50, 0, 0}, "too many connections are open",
			"too many connections are open"},
		{{50, 100, 50, 50, 0, 0}, "too many connections are open", NULL},
		{{8, 100, 8, 50, 8, 1}, "8 connections of this socket are open, the most", NULL},
		{{4, 100, 4, 50, 4, 4},
			"4 connections of uid 77 are open on this socket, the most of one uid",
			NULL},
	};

	(void)state;
	access_init_owner(&owner, "o", 0600);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct err e = ERR_NULL;
		int rc = access_check_crowd(&a, 77, &rows[i].crowd, &e);
		assert_int_equal(rc, rows[i].refusal ? -EAGAIN : 0);
		assert_string_equal(e.text, rows[i].refusal ? rows[i].refusal : "");
		rc = access_check_crowd(&owner, 77, &rows[i].crowd, &e);
		assert_int_equal(rc, rows[i].of_owner ? -EAGAIN : 0);
	}
}

static void test_share(void **state)
{
	struct access a = parse("a"), b = parse("b,connections=8"),
		      c = parse("c,uid-connections=500");

	(void)state;
	access_share(&a, 896, 3);
	assert_int_equal(a.max_connections, 298);
	assert_int_equal(a.max_uid_connections, 149);
	access_share(&b, 896, 3);
	assert_int_equal(b.max_connections, 8);
	assert_int_equal(b.max_uid_connections, 149);
	access_share(&c, 896, 3);
	assert_int_equal(c.max_connections, 298);
	assert_int_equal(c.max_uid_connections, 500);
	a = parse("a");
	access_share(&a, 2, 3);
	assert_true(a.max_connections == 1 && a.max_uid_connections == 1);
}

/* One second's tokens at once, then one each interval; silence saves no more than that. */
static void test_bucket(void **state)
{
	const uint64_t second = 1000000000, start = 1000 * second;
	struct pace_bucket b = {.n_per_s = 4}, none = {0};

	(void)state;
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(pace_bucket_wait(&none, start), 0);
		pace_bucket_take(&none, start);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pace_bucket_wait(&b, start), 0);
		pace_bucket_take(&b, start);
	}
	assert_int_equal(pace_bucket_wait(&b, start), second / 4);
	assert_int_equal(pace_bucket_wait(&b, start + second / 8), second / 8);
	assert_int_equal(pace_bucket_wait(&b, start + second / 4), 0);
	pace_bucket_take(&b, start + second / 4);
	assert_int_equal(pace_bucket_wait(&b, start + second / 4), second / 4);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pace_bucket_wait(&b, start + 100 * second), 0);
		pace_bucket_take(&b, start + 100 * second);
	}
	assert_true(pace_bucket_wait(&b, start + 100 * second) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_parse),
		CASE(test_parse_refuses),
		CASE(test_too_many),
		CASE(test_shows),
		CASE(test_rights),
		CASE(test_who),
		CASE(test_crowd),
		CASE(test_share),
		CASE(test_bucket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
