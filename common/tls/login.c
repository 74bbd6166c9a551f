#include "common/tls/login.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"

#define PATH_BYTES     1100
#define FILE_MAX       1024
#define PASSWORD_BYTES 32 /* random bytes; printed as twice as many digits */

static bool is_user(const char *text)
{
    size_t length = strlen(text);

    return length > 0 && length <= KELP_LOGIN_USER_MAX &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") ==
               length;
}

static bool is_password(const char *text)
{
    size_t length = strlen(text);
    bool plain = length > 0 && length <= KELP_LOGIN_PASSWORD_MAX;

    for (size_t i = 0; i < length; i++) {
        plain = plain && text[i] > ' ' && text[i] < 0x7f && text[i] != '"' && text[i] != '\\';
    }
    return plain;
}

static kelp_status set_path(const char *folder, char path[PATH_BYTES], struct kelp_error *reterr)
{
    int length = snprintf(path, PATH_BYTES, "%s/" KELP_LOGIN_FILE, folder);

    return length > 0 && length < PATH_BYTES
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT, "the path of the certificates is too long");
}

/* Root's files may be readable by a group, like keys. */
static kelp_status check_mode(const char *path, struct kelp_error *reterr)
{
    struct stat info;

    if (stat(path, &info) != 0) {
        return kelp_files_error(errno, "look at", path, reterr);
    }
    mode_t others = info.st_uid == 0 ? S_IWGRP | S_IRWXO : S_IRWXG | S_IRWXO;
    return (info.st_mode & others) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "others may read the password in '%s' (mode %04o): chmod 600 it", path,
                           (unsigned)(info.st_mode & 07777));
}

static kelp_status parse(char *text, const char *path, struct kelp_login *login,
                         struct kelp_error *reterr)
{
    char *rest = text;
    const char *user = strsep(&rest, "\n");
    const char *password = rest ? strsep(&rest, "\n") : "";

    if (!is_user(user) || !is_password(password) || (rest && *rest != '\0')) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "'%s' is not two lines, a user's name and a password", path);
    }
    (void)snprintf(login->user, sizeof(login->user), "%s", user);
    (void)snprintf(login->password, sizeof(login->password), "%s", password);
    return KELP_OK;
}

kelp_status kelp_login_read(const char *folder, struct kelp_login *ret_login,
                            struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    char *text = NULL;
    size_t count = 0;

    kelp_status status = set_path(folder, path, reterr);
    if (status == KELP_OK) {
        status = check_mode(path, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_files_read(path, FILE_MAX, &text, &count, reterr);
    }
    if (status == KELP_OK) {
        status = parse(text, path, ret_login, reterr);
        OPENSSL_cleanse(text, count);
        free(text);
    }
    return status;
}

static kelp_status write_login(const char *path, const struct kelp_login *login,
                               struct kelp_error *reterr)
{
    char beside[PATH_BYTES + 8];
    char text[KELP_LOGIN_USER_MAX + KELP_LOGIN_PASSWORD_MAX + 4];
    int length = snprintf(text, sizeof(text), "%s\n%s\n", login->user, login->password);

    (void)snprintf(beside, sizeof(beside), "%s.new", path);
    (void)unlink(beside);
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return kelp_files_error(errno, "make", beside, reterr);
    }
    bool wrote = kelp_files_write_all(fd, text, (size_t)length) && fsync(fd) == 0;
    int error = errno;
    OPENSSL_cleanse(text, sizeof(text));
    if (close(fd) != 0 || !wrote) {
        (void)unlink(beside);
        return kelp_files_error(error, "write", beside, reterr);
    }
    return rename(beside, path) == 0 ? KELP_OK : kelp_files_error(errno, "rename", beside, reterr);
}

kelp_status kelp_login_make(const char *folder, const char *user, struct kelp_login *ret_login,
                            struct kelp_error *reterr)
{
    unsigned char drawn[PASSWORD_BYTES];
    char path[PATH_BYTES];

    if (!is_user(user)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "'%.200s' is not the name of an etcd user",
                         user);
    }
    kelp_status status = set_path(folder, path, reterr);
    if (status == KELP_OK && RAND_bytes(drawn, sizeof(drawn)) != 1) {
        status = kelp_fail(reterr, KELP_ERR_INTERNAL, "no random numbers");
    }
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(ret_login->user, sizeof(ret_login->user), "%s", user);
    for (size_t i = 0; i < sizeof(drawn); i++) {
        (void)snprintf(ret_login->password + 2 * i, 3, "%02x", drawn[i]);
    }
    OPENSSL_cleanse(drawn, sizeof(drawn));
    return write_login(path, ret_login, reterr);
}

void kelp_login_wipe(struct kelp_login *login)
{
    OPENSSL_cleanse(login, sizeof(*login));
}
