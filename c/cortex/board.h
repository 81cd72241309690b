/* What programs for the emulated boards use: printing, the end, and a clock. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

void say(const char *text);
void say_number(uint32_t number);
void say_byte(uint8_t byte);
uint32_t ticks(void); /* of a clock of 25 MHz; with `qemu -icount shift=0` one for every 40 instructions */

#endif
