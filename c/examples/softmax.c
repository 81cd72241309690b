/* Softmax regression that trains on the device and makes one frame of nine bytes a round.
 *
 * 28 x 28 pixels and ten classes are d = 7,850 coordinates: 31 kB of weights, and a gradient buffer of 32 kB, the order
 * of the Hadamard matrix. Here the device steps along its own gradient. How frames get to a server, and how the step
 * along the mean of all devices comes back, is up to the transport.
 */
#include <math.h>

#include "board.h"
#include "fedmpdd.h"

#include "digits.h" /* DIGITS, digits[][784], labels[] */

#define PIXELS 784U
#define CLASSES 10U
#define D (CLASSES * (PIXELS + 1U)) /* the weights of each class, then ten biases */
#define ROUNDS 5U
#define STEP 0.1F
#define SESSION 0x0123456789ABCDEFU /* in the field: a seed of this training alone */
#define CLIENT 3U

static float weights[D];
static float gradient[8192];

static float pixel(uint32_t digit, uint32_t at) {
    return (float)(uint8_t)digits[digit][at] / 255.0F;
}

/* Add the gradient of one digit's loss, divided by their number, and return the loss. */
static float differentiate(uint32_t digit) {
    float chances[CLASSES], highest = -1e30F, total = 0.0F;
    for (uint32_t c = 0U; c < CLASSES; ++c) {
        chances[c] = weights[(CLASSES * PIXELS) + c];
        for (uint32_t at = 0U; at < PIXELS; ++at) { chances[c] += weights[(c * PIXELS) + at] * pixel(digit, at); }
        highest = (chances[c] > highest) ? chances[c] : highest;
    }
    for (uint32_t c = 0U; c < CLASSES; ++c) {
        chances[c] = expf(chances[c] - highest);
        total += chances[c];
    }
    for (uint32_t c = 0U; c < CLASSES; ++c) {
        const float error = ((chances[c] / total) - ((c == labels[digit]) ? 1.0F : 0.0F)) / (float)DIGITS;
        for (uint32_t at = 0U; at < PIXELS; ++at) { gradient[(c * PIXELS) + at] += error * pixel(digit, at); }
        gradient[(CLASSES * PIXELS) + c] += error;
    }
    return -logf(chances[labels[digit]] / total);
}

int main(void) {
    const fedmpdd_codec codec = {FEDMPDD_PEAKS, FEDMPDD_HADAMARD, 7U, 256U};
    for (uint32_t round = 0U; round < ROUNDS; ++round) {
        fedmpdd_key key;
        uint8_t frame[9];
        size_t length;
        float loss = 0.0F;
        for (uint32_t c = 0U; c < D; ++c) { gradient[c] = 0.0F; }
        for (uint32_t digit = 0U; digit < DIGITS; ++digit) { loss += differentiate(digit); }
        for (uint32_t c = 0U; c < D; ++c) { weights[c] -= STEP * gradient[c]; }
        /* From here on the gradient is overwritten. */
        if (fedmpdd_assign_key(SESSION, FEDMPDD_DERIVED, round, CLIENT, &key) != FEDMPDD_OK) { return 1; }
        if (fedmpdd_encode(&codec, D, &key, gradient, 8192U, FEDMPDD_BARE, frame, sizeof frame, &length) != FEDMPDD_OK) {
            return 1;
        }
        say("round ");
        say_number(round);
        say(" loss/1000 ");
        say_number((uint32_t)((loss * 1000.0F) / (float)DIGITS));
        say(" frame ");
        for (size_t i = 0U; i < length; ++i) { say_byte(frame[i]); }
        say("\n");
    }
    return 0;
}
