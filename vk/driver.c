/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/driver.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/cleanup.h"

/* Far more than any driver with its compiler and layers; those beyond are not held. */
enum { MAX_LIBRARIES = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *held[MAX_LIBRARIES];
static unsigned n_held;

struct names {
	char *names[MAX_LIBRARIES];
	unsigned n;
};

/* The list is locked meanwhile: no dlopen from here. */
static int add_name(struct dl_phdr_info *info, size_t n_bytes, void *userdata)
{
	struct names *l = userdata;

	(void)n_bytes;
	if (l->n == MAX_LIBRARIES)
		return 1;
	/* The program itself has no name. */
	if (info->dlpi_name && *info->dlpi_name) {
		char *name = strdup(info->dlpi_name);

		if (name)
			l->names[l->n++] = name;
	}
	return 0;
}

static void hold_one(const char *name)
{
	/* NULL for the kernel's vdso, which is no file. */
	void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);

	if (!handle)
		return;
	for (unsigned i = 0; i < n_held; i++)
		if (held[i] == handle) {
			dlclose(handle);
			return;
		}
	if (n_held < MAX_LIBRARIES)
		held[n_held++] = handle;
	else
		dlclose(handle);
}

void vk_driver_hold(void)
{
	_cleanup_(cleanup_free)
	struct names *l = calloc(1, sizeof(*l));

	/* Without it the next device costs more; nothing else. */
	if (!l)
		return;
	dl_iterate_phdr(add_name, l);
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < l->n; i++) {
		hold_one(l->names[i]);
		free(l->names[i]);
	}
	pthread_mutex_unlock(&lock);
}

void vk_driver_release(void)
{
	pthread_mutex_lock(&lock);
	while (n_held > 0)
		dlclose(held[--n_held]);
	pthread_mutex_unlock(&lock);
}
