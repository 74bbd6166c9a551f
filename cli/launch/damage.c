#include "cli/launch/damage.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/run/log_tail.h"
#include "cli/run/run_dir.h"
#include "common/tensors/digest.h"

#define SET_ASIDE ".damaged-"
#define LOG_LINES 200 /* of the leader's log, in which the reason stands */

/* True for a name that is new here. */
static bool note(struct kelp_damage *damage, const char *name)
{
    uint64_t digest = kelp_digest_bytes(name, strlen(name));

    for (uint32_t i = 0; i < damage->count; i++) {
        if (damage->known[i] == digest) {
            return false;
        }
    }
    if (damage->count == KELP_DAMAGE_MAX) {
        return false;
    }
    damage->known[damage->count++] = digest;
    return true;
}

/* "the checkpoint of version 9 is damaged: shard-0: …", the last such words of the log; "" when
 * they are not there. */
static void find_reason(const char *run_path, const char *leader, char *reason, size_t reason_bytes)
{
    static const char beginning[] = "the checkpoint of version ";
    char path[KELP_RUN_PATH_MAX + 128];
    char text[KELP_LOG_TAIL_BYTES];
    const char *last = NULL;

    (void)snprintf(path, sizeof(path), "%s/logs/%.63s.log", run_path, leader);
    kelp_log_tail_lines(path, 0, LOG_LINES, text, sizeof(text));
    for (const char *at = strstr(text, beginning); at; at = strstr(at + 1, beginning)) {
        last = at;
    }
    (void)snprintf(reason, reason_bytes, "%.*s", last ? (int)strcspn(last, "\n") : 0,
                   last ? last : "");
}

/* Calls tell() for each folder that is new. */
static void look(struct kelp_damage *damage, const char *run_path,
                 void (*tell)(const char *folder, void *user), void *user)
{
    char path[KELP_RUN_PATH_MAX + 32];

    (void)snprintf(path, sizeof(path), "%s/checkpoints", run_path);
    DIR *folder = opendir(path);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        if (strncmp(entry->d_name, SET_ASIDE, strlen(SET_ASIDE)) == 0 &&
            note(damage, entry->d_name)) {
            tell(entry->d_name, user);
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
}

static void ignore(const char *folder, void *user)
{
    (void)folder;
    (void)user;
}

void kelp_damage_init(struct kelp_damage *damage, const char *run_path)
{
    *damage = (struct kelp_damage){.count = 0};
    look(damage, run_path, ignore, NULL);
}

struct telling {
    char reason[320];
    uint64_t step;
    struct kelp_display *display;
};

static void tell_one(const char *folder, void *user)
{
    const struct telling *telling = user;

    kelp_display_say(telling->display,
                     "checkpoint %s could not be restored%s%s; the run goes on from step %" PRIu64
                     ", and the checkpoint is kept as checkpoints/%s",
                     folder + strlen(SET_ASIDE), telling->reason[0] ? ": " : "", telling->reason,
                     telling->step, folder);
}

void kelp_damage_tell(struct kelp_damage *damage, const char *run_path, const char *leader,
                      uint64_t step, struct kelp_display *display)
{
    struct telling telling = {.step = step, .display = display};

    find_reason(run_path, leader, telling.reason, sizeof(telling.reason));
    look(damage, run_path, tell_one, &telling);
}
