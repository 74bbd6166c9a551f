/*
 * The folder that says who a process is: ca.pem (the authorities whose certificates are believed),
 * cert.pem (its own certificate, then those between it and the authority), key.pem (its private
 * key, which its owner alone may read).
 *
 * The files may be replaced at any time. kelp_credentials_refresh() sees it, and takes what is new
 * once all of it fits together; until then, and when it says another name, what was read before
 * stays. Threads: any.
 */
#ifndef KELP_COMMON_TLS_CREDENTIALS_H
#define KELP_COMMON_TLS_CREDENTIALS_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/tls/certificate.h"

#define KELP_CREDENTIALS_FILE_MAX (256u << 10) /* bytes of one of them */
#define KELP_CREDENTIALS_PATH_MAX 1023         /* bytes of the folder's path */

#define KELP_CREDENTIALS_CA          "ca.pem"
#define KELP_CREDENTIALS_CERTIFICATE "cert.pem"
#define KELP_CREDENTIALS_KEY         "key.pem"

struct kelp_credentials;

/* From then on a crash of this process leaves no core file (core_files.h).
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID (others may read the key; it is no key of that
 * certificate; the certificate has no name), KELP_ERR_FORMAT, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_credentials_open(const char *folder, struct kelp_credentials **ret_credentials,
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp_credentials_close(struct kelp_credentials *credentials); /* NULL does nothing */

/* Borrowed; they never change. */
const struct kelp_spiffe *kelp_credentials_name(const struct kelp_credentials *credentials);
/* NULL for NULL, so that what is optional can be handed on. */
const char *kelp_credentials_folder(const struct kelp_credentials *credentials);

/* What is in use now: its own, and the first authority that is believed. */
void kelp_credentials_certificates(struct kelp_credentials *credentials,
                                   struct kelp_certificate *ret_own,
                                   struct kelp_certificate *ret_authority);

/* Look at the files. A number that grows each time that new ones are taken. *reterr (may be NULL)
 * says, once for each change, why what is there is not taken; its status is KELP_OK otherwise. */
uint64_t kelp_credentials_refresh(struct kelp_credentials *credentials, struct kelp_error *reterr);

/* Copies for a handshake; fini wipes the key. Errors: KELP_ERR_NO_MEMORY. */
struct kelp_credential_texts {
    char *ca, *certificate, *key;
    int64_t until_s; /* the certificate's */
};
kelp_status kelp_credentials_take(struct kelp_credentials *credentials,
                                  struct kelp_credential_texts *ret_texts,
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp_credential_texts_fini(struct kelp_credential_texts *texts);

#endif
