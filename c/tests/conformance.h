/* What the conformance program asks of a machine, and what it answers. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

void say(const char *text); /* print it */
int conformance(void);      /* how many checks held, or minus how many did not */

#endif
