/* The conformance program where there is an operating system. */
#include <stdio.h>

#include "conformance.h"

void say(const char *text) {
    (void)fputs(text, stdout);
}

int main(void) {
    const int checks = conformance();
    (void)printf("%d checks\n", checks);
    return (checks > 0) ? 0 : 1;
}
