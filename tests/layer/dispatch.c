/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/dispatch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dispatch_instance *instances;
static struct dispatch_device *devices;

static void *key_of(const void *handle)
{
	return *(void *const *)handle;
}

static PFN_vkVoidFunction instance_call(
	const struct dispatch_instance *i, const char *name, const char *alias)
{
	PFN_vkVoidFunction f = i->get_proc(i->handle, name);

	return f ? f : i->get_proc(i->handle, alias);
}

static PFN_vkVoidFunction device_call(
	const struct dispatch_device *d, const char *name, const char *alias)
{
	PFN_vkVoidFunction f = d->get_proc(d->handle, name);

	return f ? f : d->get_proc(d->handle, alias);
}

void dispatch_add_instance(struct dispatch_instance *i)
{
	i->key = key_of(i->handle);
#define FILL(name) i->calls.name = (PFN_vk##name)instance_call(i, "vk" #name, "vk" #name "KHR");
	DISPATCH_INSTANCE_CALLS(FILL)
#undef FILL
	pthread_mutex_lock(&lock);
	i->next = instances;
	instances = i;
	pthread_mutex_unlock(&lock);
}

void dispatch_add_device(struct dispatch_device *d)
{
	d->key = key_of(d->handle);
#define FILL(name) d->calls.name = (PFN_vk##name)device_call(d, "vk" #name, "vk" #name "KHR");
	DISPATCH_DEVICE_CALLS(FILL)
#undef FILL
#define FILL(name) d->calls.name = (PFN_vk##name)d->get_proc(d->handle, "vk" #name);
	DISPATCH_EXTENSION_CALLS(FILL)
#undef FILL
	pthread_mutex_lock(&lock);
	d->next = devices;
	devices = d;
	pthread_mutex_unlock(&lock);
}

void dispatch_remove_instance(struct dispatch_instance *i)
{
	struct dispatch_instance **at = &instances;

	pthread_mutex_lock(&lock);
	while (*at != i)
		at = &(*at)->next;
	*at = i->next;
	pthread_mutex_unlock(&lock);
	while (i->physicals) {
		struct dispatch_physical *p = i->physicals;

		i->physicals = p->next;
		heaps_fini(&p->heaps);
		free(p);
	}
}

void dispatch_remove_device(struct dispatch_device *d)
{
	struct dispatch_device **at = &devices;

	pthread_mutex_lock(&lock);
	while (*at != d)
		at = &(*at)->next;
	*at = d->next;
	pthread_mutex_unlock(&lock);
}

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "weightd layer: %s\n", what);
	abort();
}

struct dispatch_instance *dispatch_instance_of(const void *handle)
{
	pthread_mutex_lock(&lock);
	struct dispatch_instance *i = instances;
	while (i && i->key != key_of(handle))
		i = i->next;
	pthread_mutex_unlock(&lock);
	if (!i)
		die("a handle of no instance");
	return i;
}

struct dispatch_device *dispatch_device_of(const void *handle)
{
	pthread_mutex_lock(&lock);
	struct dispatch_device *d = devices;
	while (d && d->key != key_of(handle))
		d = d->next;
	pthread_mutex_unlock(&lock);
	if (!d)
		die("a handle of no device");
	return d;
}

struct dispatch_physical *dispatch_physical_of(VkPhysicalDevice handle)
{
	struct dispatch_instance *i = dispatch_instance_of(handle);
	VkPhysicalDeviceMemoryProperties real;

	pthread_mutex_lock(&lock);
	struct dispatch_physical *p = i->physicals;
	while (p && p->handle != handle)
		p = p->next;
	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p)
			die("no memory");
		i->calls.GetPhysicalDeviceMemoryProperties(handle, &real);
		p->handle = handle;
		heaps_init(&p->heaps, &i->config, &real);
		p->next = i->physicals;
		i->physicals = p;
	}
	pthread_mutex_unlock(&lock);
	return p;
}
