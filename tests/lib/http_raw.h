/* HTTP as bytes, to a server of common/scrape/: requests as they should not be, and as they should.
 */
#ifndef KELP_TESTS_LIB_HTTP_RAW_H
#define KELP_TESTS_LIB_HTTP_RAW_H

#include <stddef.h>
#include <stdint.h>

#define KELP_TEST_HTTP_MAX (256u << 10)

/* Connect to "127.0.0.1:PORT" or "unix:/PATH"; -1: nobody listens. Closed by the caller. */
int kelp_test_http_connect(const char *address);
/* Send as much as is taken; a server may have closed it. */
void kelp_test_http_send(int fd, const char *bytes, size_t count);
/* All until the server closes the connection, which is closed here too. Fails the test when that
 * takes longer. Static storage, until the next call. */
const char *kelp_test_http_read(int fd, uint32_t timeout_ms);
/* `METHOD PATH` as a client would ask for it; the whole response, "" when nobody listens. */
const char *kelp_test_http_ask(const char *address, const char *method, const char *path);

/* The status of a response; 0: none. */
int kelp_test_http_status(const char *response);
/* What follows the headers. */
const char *kelp_test_http_body(const char *response);
/* The value of a sample by its name with labels, as `kelp_ready`; -1 when it is not there. */
double kelp_test_http_sample(const char *body, const char *name);

#endif
