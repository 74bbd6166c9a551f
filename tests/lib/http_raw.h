/* Raw HTTP to a server of common/scrape/: valid and invalid requests. */
#ifndef KELP_TESTS_LIB_HTTP_RAW_H
#define KELP_TESTS_LIB_HTTP_RAW_H

#include <stddef.h>
#include <stdint.h>

#define KELP_TEST_HTTP_MAX (256u << 10)

/* Connect to "127.0.0.1:PORT" or "unix:/PATH"; -1 if nothing listens there. Closed by the
 * caller. */
int kelp_test_http_connect(const char *address);
/* Send as much as the server accepts; it may have closed the connection. */
void kelp_test_http_send(int fd, const char *bytes, size_t count);
/* Read everything until the server closes the connection, and close it here too. Fails the test if
 * that takes longer than timeout_ms. The text is static and valid until the next call. */
const char *kelp_test_http_read(int fd, uint32_t timeout_ms);
/* Send `METHOD PATH` as a client would; returns the whole response, "" if nothing listens. */
const char *kelp_test_http_ask(const char *address, const char *method, const char *path);

/* The status of a response; 0 if it has none. */
int kelp_test_http_status(const char *response);
/* What follows the headers. */
const char *kelp_test_http_body(const char *response);
/* The value of a sample by its name with labels, such as `kelp_ready`; -1 if there is no such
 * sample. */
double kelp_test_http_sample(const char *body, const char *name);

#endif
