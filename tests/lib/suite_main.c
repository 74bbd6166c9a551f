/* The main() of a test program that has none of its own. */
#include "tests/lib/suite.h"

int main(void)
{
    return kelp_suite_run();
}
