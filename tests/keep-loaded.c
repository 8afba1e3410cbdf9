/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded under LeakSanitizer. The Vulkan loader unloads drivers and layers before leaks are
 * looked for; then what they never free has no name, or the name of whatever was loaded in their
 * place, and tests/lsan.supp cannot tell it from ours.
 */
int dlclose(void *handle);

int dlclose(void *handle)
{
	(void)handle;
	return 0;
}
