/* Who changes the entry: each change is one of those that the rules allow, and no more careful. */
#include "tests/sim/replicas/replicas.h"

static bool is_up(const struct replicas *world, uint64_t process)
{
    return process != 0 && world->processes[process - 1].is_up;
}

bool replicas_is_named(const struct replicas *world, uint64_t process)
{
    const struct replicas_entry *entry = &world->map[world->epoch];

    return entry->primary == process || entry->backup == process || entry->joiner == process;
}

static void write_entry(struct replicas *world, uint64_t primary, uint64_t backup, uint64_t joiner)
{
    world->promotions += primary != world->map[world->epoch].primary ? 1 : 0;
    world->epoch++;
    world->map[world->epoch] =
        (struct replicas_entry){.primary = primary, .backup = backup, .joiner = joiner};
    if (world->trace) {
        (void)printf("map %llu: primary %llu, backup %llu, joiner %llu\n",
                     (unsigned long long)world->epoch, (unsigned long long)primary,
                     (unsigned long long)backup, (unsigned long long)joiner);
    }
}

/* Dead, or taken for it. */
static bool is_lost(struct replicas *world, uint64_t process)
{
    if (process == 0) {
        return false;
    }
    if (!is_up(world, process)) {
        return true;
    }
    if (world->suspicions == 0 || replicas_draw(world, 4) != 0) {
        return false;
    }
    world->suspicions--;
    return true;
}

static void fail_over(struct replicas *world, const struct replicas_entry *now)
{
    const bool to_joiner = now->in_sync && is_up(world, now->joiner);

    if (to_joiner && (!is_up(world, now->backup) || replicas_draw(world, 2) == 0)) {
        write_entry(world, now->joiner, now->backup, 0);
    } else if (is_up(world, now->backup) && now->in_sync && replicas_draw(world, 2) == 0) {
        write_entry(world, now->backup, now->joiner, 0);
    } else if (is_up(world, now->backup)) {
        write_entry(world, now->backup, 0, now->joiner);
    } else if (!is_up(world, now->primary)) {
        world->restored = true;
    }
}

static void attach(struct replicas *world, const struct replicas_entry *now)
{
    uint64_t process = 1 + replicas_draw(world, REPLICAS_PROCESSES);

    if (world->joiners > 0 && is_up(world, process) && !replicas_is_named(world, process)) {
        world->joiners--;
        write_entry(world, now->primary, now->backup, process);
    }
}

void replicas_lead(struct replicas *world)
{
    const struct replicas_entry now = world->map[world->epoch];

    if (world->epoch + 2 >= REPLICAS_EPOCHS) {
        return;
    }
    if (is_lost(world, now.primary)) {
        fail_over(world, &now);
    } else if (is_lost(world, now.backup)) {
        write_entry(world, now.primary, 0, now.joiner);
    } else if (is_lost(world, now.joiner)) {
        write_entry(world, now.primary, now.backup, 0);
    } else if (now.joiner == 0) {
        attach(world, &now);
    } else if (now.in_sync && replicas_draw(world, 2) == 0) {
        write_entry(world, now.primary, now.joiner,
                    0);       /* it is, or takes the place of, the backup */
    } else if (now.in_sync) { /* planned: without a backup the old primary stays as one */
        write_entry(world, now.joiner, now.backup != 0 ? now.backup : now.primary, 0);
    }
}
