/* Start-up, semihosting and a timer of the boards mps2-an385 (Cortex-M3) and mps2-an386 (Cortex-M4 with an FPU). */
#include "board.h"

#include <stddef.h>

extern uint8_t stack_top[], data_load[], data_begin[], data_end[], bss_begin[], bss_end[];
int main(void);
void reset(void);

static uintptr_t semihost(uintptr_t operation, const void *argument) {
    register uintptr_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void say(const char *text) {
    (void)semihost(0x04U, text); /* SYS_WRITE0 */
}

void say_number(uint32_t number) {
    char text[11];
    size_t digit = sizeof text - 1U;
    text[digit] = '\0';
    do {
        digit -= 1U;
        text[digit] = (char)('0' + (char)(number % 10U));
        number /= 10U;
    } while (number > 0U);
    say(&text[digit]);
}

void say_byte(uint8_t byte) {
    static const char digits[] = "0123456789abcdef";
    const char text[3] = {digits[byte >> 4], digits[byte & 15U], '\0'};
    say(text);
}

uint32_t ticks(void) {
    return 0U - *(volatile uint32_t *)0x40000004U; /* the timer counts down */
}

void reset(void) {
    for (size_t i = 0U; i < (size_t)(data_end - data_begin); ++i) { data_begin[i] = data_load[i]; }
    for (size_t i = 0U; i < (size_t)(bss_end - bss_begin); ++i) { bss_begin[i] = 0U; }
#if defined(__ARM_FP)
    *(volatile uint32_t *)0xE000ED88U |= 0x00F00000U; /* the coprocessors of the FPU */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    *(volatile uint32_t *)0x40000008U = UINT32_MAX; /* reload, value, and on */
    *(volatile uint32_t *)0x40000004U = UINT32_MAX;
    *(volatile uint32_t *)0x40000000U = 1U;
    const uint32_t block[2] = {0x20026U, (uint32_t)main()};
    (void)semihost(0x20U, block); /* SYS_EXIT_EXTENDED */
    for (;;) {
    }
}

static void fault(void) {
    static const uint32_t block[2] = {0x20026U, 99U};
    say("FAULT\n");
    (void)semihost(0x20U, block);
    for (;;) {
    }
}

typedef void (*handler)(void);
__attribute__((section(".vectors"), used)) static const handler vectors[16] = {
    (handler)(uintptr_t)stack_top, reset, fault, fault, fault, fault, fault, 0, 0, 0, 0, fault, fault, 0, fault, fault};
