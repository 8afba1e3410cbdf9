/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_DRIVER_H
#define VK_DRIVER_H

/*
 * Keeps the driver's libraries in the process while devices come and go. Inside vk/ only.
 *
 * The loader unloads them with the last instance. A driver that is loaded again and again leaks
 * what libraries cannot give back: NVIDIA 580 is "no driver" after some 25 rounds. An instance that
 * is kept would prevent it too, but would also keep what a refused import broke; a reference to the
 * libraries alone lets every device have an instance of its own.
 */

/*
 * Takes a reference to every library that is loaded: the driver's and the layers' are not known by
 * name, and of the others the process never lets go anyway. Again for those loaded since. Any
 * thread.
 */
void vk_driver_hold(void);

/* Gives all of them back, so that the last device takes the driver's state with it. Any thread. */
void vk_driver_release(void);

#endif
