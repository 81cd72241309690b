/* A program that does nothing, around which the size of everything else is taken. */
int main(void);

int main(void) {
    return 0;
}
