/* The conformance program on a board. */
#include "board.h"
#include "conformance.h"

int main(void) {
    const int checks = conformance();
    say_number((uint32_t)((checks > 0) ? checks : -checks));
    say(" checks\n");
    return (checks > 0) ? 0 : 1;
}
