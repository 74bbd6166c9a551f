/* A library, but no model. */
extern int kelp_test_no_model;
int kelp_test_no_model = 1;
