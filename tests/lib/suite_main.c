/* The main() of test programs without their own. */
#include "tests/lib/suite.h"

int main(void)
{
    return kelp_suite_run();
}
