/*
 * What a leadership and its terms want done, carried out by the coordinator's parts. The user of
 * both tables is the coordinator.
 */
#ifndef KELP_COORDINATOR_EFFECTS_H
#define KELP_COORDINATOR_EFFECTS_H

#include "coordinator/term/leadership.h"

extern const struct kelp_leadership_effects kelp_coordinator_leadership_effects;
extern const struct kelp_term_effects kelp_coordinator_term_effects;

#endif
